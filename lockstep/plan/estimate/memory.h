// The memory that a layout takes on each rank, part by part. Pure; needs no machine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/estimate/pipeline_shapes.h"
#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/machine/machine.h"
#include "lockstep/plan/machine/stack.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan {

// Bytes of one rank at the worst moment of a step.
struct LOCKSTEP_API MemoryParts {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // of all micro-batches that are on their way
  double logits = 0;       // of the head, with their gradient
  double gathered =
      0;  // parameters and gradients of the units that are whole for a moment (zero 3), casts
  double buffers = 0;  // of communication: what is received ahead, buckets
  double fixed = 0;    // beside tensors
  double fragmentation = 0;
  double total() const;  // of all parts
  // The state is what lasts from step to step: parameters, gradients, optimizer.
  double state() const { return parameters + gradients + optimizer; }
  // In this order, with names for people; those of 0 bytes too.
  std::vector<std::pair<const char*, double>> parts() const;
};

// The memory of all stages of a pipeline.
struct LOCKSTEP_API StageMemory {
  std::vector<MemoryParts> stages;  // of a rank of each stage of the pipeline
  int worst = 0;                    // the stage with the largest total
  // The parts of that stage.
  const MemoryParts& of_worst() const { return stages[static_cast<size_t>(worst)]; }
};

// Throws InvalidArgument as check(layout, model) does. `shapes`: shared by many estimates, or none. `sharers`: the ranks of a
// host that have one copy of the parameters once ZeRO divides anything, of which each counts its part
// (Stack::shares_parameters). Shapes of activations follow Korthikanti et al.
// (arXiv:2205.05198): s b h (34 + 5 a s / h) bytes of a GPT layer whose attention is not one kernel.
LOCKSTEP_API StageMemory estimate_memory(const ModelShape& model, const Layout& layout,
                                         const Stack& stack, PipelineShapes* shapes = nullptr,
                                         int sharers = 1);

// That number: the ranks of a host that average the same gradients, where they share, and 1 elsewhere.
LOCKSTEP_API int sharers_of(const Layout& layout, const Machine& machine, const Stack& stack);

// Bytes that one layer's forward of one micro-batch leaves on a rank for its backward.
LOCKSTEP_API double layer_activation_bytes(const ModelShape& model, int64_t layer,
                                           const Layout& layout, const Stack& stack);
// The parameters of a rank of each stage that every tensor rank has, and those that are experts'.
struct StageParameters {
  double dense = 0;    // averaged along replicas
  double experts = 0;  // averaged along expert_replicas
};
LOCKSTEP_API std::vector<StageParameters> stage_parameters(const ModelShape& model,
                                                           const Layout& layout);

}  // namespace lockstep::inline v0::plan
