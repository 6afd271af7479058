// Whether a schedule can be run, and how much a stage holds while it runs. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::inline v0 {

// A message of a pipeline: a chunk's output to the next chunk, or the gradient of a chunk's input to
// the chunk before.
struct PipelineMessage {
  int from = 0, to = 0;  // chunks, neighbours
  int micro_batch = 0;
  bool forward() const { return from < to; }  // it carries outputs, and not gradients
  bool operator==(const PipelineMessage&) const = default;
};
// The message that an action waits for before it can run, and the one that it then gives to another
// chunk, on the same stage or another; none at the model's ends and for gradients of weights.
LOCKSTEP_API std::optional<PipelineMessage> received_by(const PipelineSchedule& schedule,
                                                        const PipelineAction& action);
LOCKSTEP_API std::optional<PipelineMessage> sent_by(const PipelineSchedule& schedule,
                                                    const PipelineAction& action);

// How a stage runs its actions.
struct PipelineDiscipline {
  // How many receives a stage has posted beside that of the action that it is at, in the order in
  // which it will need them.
  int receives_ahead = 1;
  // Sends that wait for their receives at once; a stage with more waits for the oldest. 0: any number.
  int most_sends = 0;
};

// Throws InvalidArgument in one line that names the stage and the action:
// - every chunk runs every micro-batch once forward and once backward (both gradients together, or each
//   once), on the stage that has it, and nothing else;
// - between two neighbouring chunks messages are received in the order in which they are sent;
// - run under `discipline`, where a message arrives when its receive is posted and not before, all stages
//   come to their ends.
LOCKSTEP_API void check_schedule(const PipelineSchedule& schedule,
                                 const PipelineDiscipline& discipline = {});

// The most activations that each stage holds at once; one is a chunk's of a micro-batch, from its
// forward until its last backward. Divided by schedule.chunks: in micro-batches of a whole stage.
LOCKSTEP_API std::vector<int> peak_activations(const PipelineSchedule& schedule);

// The peak that the papers give for a stage, for comparison. Nothing where they give none: for a
// custom schedule, and for zb-v with too few micro-batches to fill the pipeline, which holds less.
LOCKSTEP_API std::optional<int> expected_peak(const PipelineSchedule& schedule, int stage);

}  // namespace lockstep::inline v0
