#include "lockstep/plan/machine/measured_parts.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::plan {
namespace {

double squared_distance(const PartShape& one, const PartShape& other) {
  double sum = 0;
  for (const auto size :
       {&PartShape::width, &PartShape::inner, &PartShape::rows, &PartShape::sequence}) {
    const double apart = std::log(std::max(1.0, one.*size) / std::max(1.0, other.*size));
    sum += apart * apart;
  }
  return sum;
}

}  // namespace

const char* name_of(StepPart part) {
  switch (part) {
    case StepPart::kLayer:
      return "layer";
    case StepPart::kEnds:
      return "ends";
    case StepPart::kUpdate:
      return "update";
  }
  return "?";
}

StepPart parse_step_part(std::string_view text) {
  for (const StepPart part : {StepPart::kLayer, StepPart::kEnds, StepPart::kUpdate})
    if (text == name_of(part)) return part;
  throw InvalidArgument("part '" + std::string(text) + "': give layer, ends or update");
}

PartFactors factors_of(const std::vector<MeasuredPart>& measured, StepPart part,
                       const PartShape& shape) {
  constexpr double kSame = 1e-12;  // of squared logarithms
  double all = 0, forward = 0, backward = 0;
  for (const MeasuredPart& one : measured) {
    if (one.part != part) continue;
    const double squared = squared_distance(one.shape, shape);
    if (squared < kSame) return {one.forward, one.backward};
    const double weight = 1 / (squared * squared);
    all += weight;
    forward += weight * std::log(one.forward);
    backward += weight * std::log(one.backward);
  }
  if (all == 0) return {};
  return {std::exp(forward / all), std::exp(backward / all)};
}

}  // namespace lockstep::inline v0::plan
