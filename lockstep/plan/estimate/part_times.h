// part_times(): what the parts of a step take on one rank that does not communicate, so that they
// can be held against a measurement (machine/measured_parts.h). Pure.
#pragma once

#include "lockstep/core/export.h"
#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/machine/machine.h"
#include "lockstep/plan/machine/stack.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan {

// In seconds, of one micro-batch; the update, of a step.
struct PartTimes {
  double layer_forward = 0, layer_backward = 0;  // of the first layer
  double ends_forward = 0, ends_backward = 0;    // embeddings, head and loss
  double update = 0;                             // of all parameters
};
// Only the fields of `layout` that are not divided count: micro_batch, sequence, precision,
// masters, optimizer, gradient_bytes. Throws InvalidArgument as estimate() does.
LOCKSTEP_API PartTimes part_times(const ModelShape& model, const Layout& layout,
                                  const Machine& machine, const Stack& stack);

// The shapes by which a stack's measured parts are found: of a layer and of the ends for a micro-batch of `rows`
// tokens, and of an update of so many elements.
LOCKSTEP_API PartShape layer_part(const ModelShape& model, int tensor, double rows,
                                  double sequence);
LOCKSTEP_API PartShape ends_part(const ModelShape& model, int tensor, double rows);
LOCKSTEP_API PartShape update_part(double elements);

}  // namespace lockstep::inline v0::plan
