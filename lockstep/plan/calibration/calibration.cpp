#include "lockstep/plan/calibration/calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/quantile.h"
#include "lockstep/plan/estimate/part_times.h"
#include "lockstep/plan/machine/late_rank.h"

namespace lockstep::inline v0::plan {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument("calibration: " + what);
}

double flops_of(const ProductSample& sample) {
  const auto size = static_cast<double>(sample.size);
  return 2 * size * size * size / sample.seconds;
}

double reached(double size, double half) {
  return std::pow(size / (size + half), 3);
}

// How many steps a ring takes, and how many times the bytes a rank sends.
struct Ring {
  double steps, volume;
};
Ring ring_of(const CollectiveSample& sample) {
  const double ranks = sample.ranks, share = (ranks - 1) / ranks;
  switch (sample.collective) {
    case Collective::kAllReduce:
      return {2 * (ranks - 1), 2 * share};
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return {ranks - 1, share};
    case Collective::kAllToAll:
      return {1, share};
    case Collective::kBroadcast:
    case Collective::kSend:
      return {1, 1};
  }
  return {1, 1};
}

Stack stack_of(const Measurements& measured, const ProductFit& fit, double peak) {
  Stack stack = known_stack("lockstep");
  stack.name = "calibrated";
  stack.matrix = 1;  // the peak is what was reached
  stack.half = fit.half;
  if (measured.attention_flops > 0)
    stack.attention = std::clamp(measured.attention_flops / peak, 1e-6, 1.0);
  stack.memory = 1;
  stack.links = 1;
  // Ranks on the host's processors have no others that could send meanwhile, and share one copy of the parameters.
  if (measured.host) stack.overlap = 0;
  stack.shares_parameters = measured.host;
  stack.fixed_bytes = measured.fixed_bytes;
  stack.source = "measured by lockstep plan --calibrate";
  return stack;
}

// How many times its roofline each part took.
std::vector<MeasuredPart> factors_of_parts(const std::vector<PartSample>& samples,
                                           const Machine& machine, const Stack& stack) {
  std::vector<MeasuredPart> found;
  const auto add = [&](StepPart part, const PartShape& shape, double forward, double backward) {
    if (std::isfinite(forward) && forward > 0 && std::isfinite(backward) && backward > 0)
      found.push_back({.part = part, .shape = shape, .forward = forward, .backward = backward});
  };
  for (const PartSample& sample : samples) {
    Layout layout{.micro_batch = sample.batch, .global_batch = sample.batch};
    layout.sequence = sample.sequence;
    layout.precision = Precision::kFloat32;
    layout.masters = false;
    const PartTimes roofline = part_times(sample.model, layout, machine, stack);
    const auto rows = static_cast<double>(sample.batch * sample.sequence);
    add(StepPart::kLayer, layer_part(sample.model, 1, rows, static_cast<double>(sample.sequence)),
        sample.layer_forward / roofline.layer_forward,
        sample.layer_backward / roofline.layer_backward);
    add(StepPart::kEnds, ends_part(sample.model, 1, rows),
        sample.ends_forward / roofline.ends_forward, sample.ends_backward / roofline.ends_backward);
    add(StepPart::kUpdate, update_part(static_cast<double>(parameter_count(sample.model))),
        sample.update / roofline.update, 1);
  }
  return found;
}

// Of the samples that were measured the median; 0 without one.
double jitter_of(const std::vector<PartSample>& samples, int ranks) {
  std::vector<double> found;
  for (const PartSample& sample : samples)
    if (sample.step > 0) found.push_back(sample.late / late_time(1, sample.step, 1, ranks));
  return ranks < 2 || found.empty() ? 0 : median(found);
}

// Of each collective that was measured its own link.
std::map<Collective, Link> links_of(const std::vector<CollectiveSample>& samples) {
  std::map<Collective, Link> links;
  for (const Collective collective : all_collectives()) {
    std::vector<CollectiveSample> own;
    for (const CollectiveSample& sample : samples)
      if (sample.collective == collective && sample.ranks > 1 && sample.beta > 0)
        own.push_back(sample);
    if (!own.empty()) links[collective] = fit_link(own);
  }
  return links;
}

}  // namespace

ProductFit fit_products(const std::vector<ProductSample>& samples, Precision precision) {
  std::vector<ProductSample> own;
  for (const ProductSample& sample : samples)
    if (sample.precision == precision && sample.seconds > 0 && sample.size > 0)
      own.push_back(sample);
  ProductFit best;
  if (own.empty()) return best;
  double least = std::numeric_limits<double>::infinity();
  // For each half the best peak is known; halves in steps of a twentieth, and none.
  for (double half = 0; half < 4096; half = half == 0 ? 1 : half * 1.05) {
    double top = 0, below = 0;  // the least squares of peak * r / f = 1
    for (const ProductSample& sample : own) {
      const double ratio = reached(static_cast<double>(sample.size), half) / flops_of(sample);
      top += ratio;
      below += ratio * ratio;
    }
    const double peak = top / below;
    double sum = 0, worst = 0;
    for (const ProductSample& sample : own) {
      const double error =
          peak * reached(static_cast<double>(sample.size), half) / flops_of(sample) - 1;
      sum += error * error;
      worst = std::max(worst, std::abs(error));
    }
    if (sum >= least) continue;
    least = sum;
    best = {.peak = peak, .half = half, .error = worst};
  }
  return best;
}

Link fit_link(const std::vector<CollectiveSample>& samples) {
  std::vector<double> latencies, bandwidths;
  for (const CollectiveSample& sample : samples) {
    if (sample.ranks < 2) continue;
    const Ring ring = ring_of(sample);
    latencies.push_back(sample.alpha / ring.steps);
    if (sample.beta > 0) bandwidths.push_back(ring.volume / sample.beta);
  }
  if (bandwidths.empty()) refuse("no collective was measured at two sizes; measure one");
  return {.latency = median(latencies), .bandwidth = median(bandwidths)};
}

Calibration calibration_of(const Measurements& measured) {
  const ProductFit wide = fit_products(measured.products, Precision::kFloat32);
  const ProductFit narrow = fit_products(measured.products, Precision::kBFloat16);
  if (wide.peak <= 0) refuse("no product in float32 was measured; measure some sizes");
  if (!(measured.copied > 0)) refuse("no copy was measured; measure one");
  if (!(measured.memory > 0)) refuse("the memory of a rank is not known; give it");
  Machine machine;
  machine.name = measured.name;
  machine.ranks_per_host = measured.ranks;
  machine.float32 = wide.peak;
  // Where bfloat16 is emulated it is no faster, and then nothing is won by it.
  machine.bfloat16 = narrow.peak;
  machine.memory = measured.memory;
  machine.memory_bandwidth = measured.copied;
  machine.launch = measured.launch;
  machine.inside = fit_link(measured.inside);
  machine.between = measured.between.empty() ? machine.inside : fit_link(measured.between);
  machine.host = measured.host;
  machine.collectives = links_of(measured.inside);
  machine.processors = measured.processors;
  const std::string here = "measured, " + std::to_string(measured.ranks) + " ranks at once";
  machine.sources = {{"float32, bfloat16", here + ": the largest products"},
                     {"memory_bandwidth", here + ": copies"},
                     {"launch", here + ": an operator on one element"},
                     {"inside", "measured: collectives over " + measured.inside_over},
                     {"between", measured.between.empty()
                                     ? "not measured: as inside"
                                     : "measured: collectives over " + measured.between_over}};
  check(machine);
  const bool usual = machine.bfloat16 > machine.float32;
  Stack stack =
      stack_of(measured, usual ? narrow : wide, usual ? machine.bfloat16 : machine.float32);
  stack.measured = factors_of_parts(measured.parts, machine, stack);
  stack.jitter = jitter_of(measured.parts, measured.ranks);
  return {.machine = machine, .stack = std::move(stack)};
}

Calibration with_ranks(Calibration calibration, int ranks_per_host) {
  Machine& machine = calibration.machine;
  if (!machine.host || machine.ranks_per_host == ranks_per_host) return calibration;
  const double memory = static_cast<double>(machine.ranks_per_host) / ranks_per_host;
  // Where they are not known, the ranks that were measured had them all.
  const double processors = machine.processors > 0 ? machine.processors : machine.ranks_per_host;
  const auto of_rank = [&](int ranks) { return std::min(1.0, processors / ranks); };
  const double computing = of_rank(ranks_per_host) / of_rank(machine.ranks_per_host);
  machine.float32 *= computing;
  machine.bfloat16 *= computing;
  machine.memory *= memory;
  machine.memory_bandwidth *= memory;
  machine.ranks_per_host = ranks_per_host;
  return calibration;
}

std::string to_json(const Calibration& calibration) {
  auto object = nlohmann::ordered_json::parse(to_json(calibration.machine));
  if (calibration.stack)
    object["stack"] = nlohmann::ordered_json::parse(to_json(*calibration.stack));
  return object.dump(2) + "\n";
}

Calibration calibration_from_json(std::string_view text, const std::string& source) {
  nlohmann::json json = parse_json(text, source, refuse_as<InvalidArgument>, {.once = true});
  Calibration calibration;
  if (json.is_object() && json.contains("stack")) {
    calibration.stack = stack_from_json(json["stack"].dump(), source + ": stack");
    json.erase("stack");
  }
  calibration.machine = machine_from_json(json.dump(), source);
  return calibration;
}

Calibration find_calibration(const std::string& name) {
  if (name.find('/') == std::string::npos && !name.ends_with(".json"))
    return {.machine = known_machine(name), .stack = std::nullopt};
  return calibration_from_json(read_named_file(name), path_from_here(name));
}

}  // namespace lockstep::inline v0::plan
