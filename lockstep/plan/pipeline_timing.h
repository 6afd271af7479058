// When each action of a schedule begins and ends, given how long they take. Pure.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::inline v0 {

// The times of one micro-batch in one stage, all of its chunks together; in any unit.
struct PipelineTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  // From the end of an action until another stage has what it gave. Computation goes on meanwhile.
  double communication = 0;
};

// An action with its begin and end.
struct TimedAction {
  PipelineAction action;
  double start = 0, end = 0;
};

// When each action runs, and what that costs.
struct PipelineTiming {
  std::vector<std::vector<TimedAction>> actions;  // of each stage, in its order
  double makespan = 0;  // from the first action of all until the last has ended
  double ideal = 0;     // what a stage computes: the makespan without any waiting
  // (makespan - ideal) / ideal. What a step costs where all stages begin and end together.
  double bubble = 0;
  // The most that a stage waits between its own first and last action, / ideal: what a step costs where
  // stages go on to the next one by themselves, as the papers on zero bubbles count.
  double inner_bubble = 0;
};

// Each stage runs its actions in order, each as soon as what it waits for is there. `schedule` is one
// that check_schedule() takes. Throws InvalidArgument for times that are negative, not finite or all 0.
LOCKSTEP_API PipelineTiming time_of(const PipelineSchedule& schedule, const PipelineTimes& times);
// The same where chunks differ: of each chunk of the model its times, and how long its messages to its neighbours take.
// The ideal is the time of the stage that computes most. Where `processors` are fewer than the stages, those that
// compute share them equally, none has more than one, and one that waits leaves its share to the others. Throws also
// for another number of chunks, and for processors that are not above 0.
LOCKSTEP_API PipelineTiming time_of(const PipelineSchedule& schedule,
                                    std::span<const PipelineTimes> of_chunks,
                                    double processors = std::numeric_limits<double>::infinity());

// The bubble that the papers give, without communication: (p - 1) / m for gpipe and 1f1b,
// (p - 1) / (v m) interleaved, (p - 1) (F + B - W) / (m (F + B + W)) for zb-h1, and for zb-v 0 of the
// inner bubble where all three take equal time. Nothing where they give none, fewer micro-batches than
// stages among it.
LOCKSTEP_API std::optional<double> expected_bubble(const PipelineSchedule& schedule,
                                                   const PipelineTimes& times);

}  // namespace lockstep::inline v0
