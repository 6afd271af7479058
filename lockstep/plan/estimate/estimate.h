// estimate(): memory and time of a training job on a machine, before it runs. Pure.
//
//   const plan::Estimate found = plan::estimate(model, layout, machine, stack);
//   found.step;                        // seconds
//   found.memory.of_worst().total();   // bytes of the fullest rank
//
// One data replica is computed, whatever the number of ranks; the pipeline runs by event simulation on the schedule that the
// executor runs (pipeline_schedule.h). Thousands of layouts a second.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/estimate/memory.h"
#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/machine/machine.h"
#include "lockstep/plan/machine/stack.h"
#include "lockstep/plan/model/flop_convention.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan {

// Where the time of a step goes, in seconds, on the stage that has most to do. They sum to the step.
struct LOCKSTEP_API TimeParts {
  double matrices = 0;       // products with weights, forward and backward
  double attention = 0;      // products of scores
  double elementwise = 0;    // what only moves memory
  double recomputation = 0;  // all three, once more
  double head = 0;           // embeddings, head and loss
  double tensor = 0;         // exposed collectives of each axis
  double context = 0;
  double expert = 0;
  double gradients = 0;   // exposed averages of gradients
  double parameters = 0;  // exposed gathers of parameters
  double pipeline = 0;    // messages between stages that were waited for
  double bubble = 0;      // waiting because the pipeline fills, empties or is uneven
  double optimizer = 0;
  double late = 0;       // waiting for the slowest rank
  double host = 0;       // the stack's own
  double total() const;  // of all parts: the step
  // Communication that is not hidden.
  double exposed() const { return tensor + context + expert + gradients + parameters + pipeline; }
  std::vector<std::pair<const char*, double>> parts() const;  // in this order, those of 0 too
};

// The memory and the times of a layout's step, with their parts for reports.
struct LOCKSTEP_API Estimate {
  StageMemory memory;
  TimeParts time;
  double step = 0;               // seconds
  double tokens_per_second = 0;  // of one rank
  double bubble = 0;             // share of the step
  double exposed = 0;            // share of the step: communication that is not hidden
  // The worst stage fits into the machine's memory; by how many bytes it does, or, below 0, does not.
  double spare_bytes = 0;
  // There is room for it.
  bool fits() const { return spare_bytes >= 0; }
  // "exposed all-gather of parameters 12 %", "stage 0 does not fit by 3.1 GiB": the largest losses first.
  std::vector<std::string> losses() const;
};

// Throws InvalidArgument as check() of each of them does. `shapes`: shared by many estimates, or none.
LOCKSTEP_API Estimate estimate(const ModelShape& model, const Layout& layout,
                               const Machine& machine, const Stack& stack,
                               PipelineShapes* shapes = nullptr);

// Figures for a table: FLOP/s of one rank under a convention, and its share of the machine's peak.
LOCKSTEP_API double flops_per_second(const Estimate& found, const ModelShape& model,
                                     const Layout& layout, const FlopConvention& convention);
LOCKSTEP_API double utilization(const Estimate& found, const ModelShape& model,
                                const Layout& layout, const Machine& machine,
                                const FlopConvention& convention);

// The time of one step by what the published tables print: seconds from tokens/s/GPU.
LOCKSTEP_API double step_of(double tokens_per_second_of_rank, const Layout& layout);

}  // namespace lockstep::inline v0::plan
