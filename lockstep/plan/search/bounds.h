// Bounds from below on the time of a step, by which a search leaves out most layouts. Pure.
#pragma once

#include "lockstep/plan/search/search.h"

namespace lockstep::inline v0::plan {

// The time that a stage computes and waits with one micro-batch, whatever the schedule and the ZeRO
// stage: by the layout's mesh, micro-batch, rows and activation policy.
struct MicroBatchWork {
  double slowest = 0;   // of the slowest stage, where each stage has one chunk
  double mean = 0;      // no stage's cut has a slowest one below it
  double lightest = 0;  // of a stage that has as few layers as one can
  // Ranks are more than processors: a stage that waits may cost nothing.
  bool waits_for_nothing = false;
};
MicroBatchWork work_of(const ModelShape& model, const Layout& layout, const Machine& machine,
                       const Stack& stack, PipelineShapes* shapes = nullptr);

// No estimate() of a layout with this work is below it.
double least_step(const Layout& layout, const MicroBatchWork& work);

}  // namespace lockstep::inline v0::plan
