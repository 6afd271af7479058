// MeasuredPart: how long a part of a training step took on a machine, as a multiple of what its
// roofline says. A plan of the same shapes is then as exact as the measurement, and one of shapes
// near them is nearer than a roofline. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::plan {

// The parts of a step on a rank that does not communicate.
enum class StepPart : uint8_t {
  kLayer,   // of the model
  kEnds,    // embeddings, head and loss
  kUpdate,  // the optimizer's
};
// "layer", "ends", "update"; the parser throws InvalidArgument with the names.
LOCKSTEP_API const char* name_of(StepPart part);
LOCKSTEP_API StepPart parse_step_part(std::string_view text);

// The sizes that decide how far from its roofline a part is. Each is 1 or more.
struct PartShape {
  double width = 1;  // elements of a row; of an update: 1
  double inner = 1;  // a layer's inner columns, the ends' words, an update's elements; on one rank
  double rows = 1;   // tokens of a micro-batch
  double sequence = 1;  // tokens that a token attends to
  bool operator==(const PartShape&) const = default;
};

struct MeasuredPart {
  StepPart part = StepPart::kLayer;
  PartShape shape = {};
  double forward = 1, backward = 1;  // measured / roofline; an update has the first alone
  bool operator==(const MeasuredPart&) const = default;
};

// By which a part's rooflines are multiplied.
struct PartFactors {
  double forward = 1, backward = 1;
};
// The factors of a shape: its own if it was measured, otherwise the geometric mean of those
// measured, each weighted by the inverse of its distance's fourth power, in logarithms of the
// sizes. 1 where none was measured.
LOCKSTEP_API PartFactors factors_of(const std::vector<MeasuredPart>& measured, StepPart part,
                                    const PartShape& shape);

}  // namespace lockstep::inline v0::plan
