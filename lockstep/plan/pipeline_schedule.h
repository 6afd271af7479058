// PipelineSchedule: which stage of a pipeline computes what, in which order. Data; pure.
//
// A model is cut into chunks, numbered from its input on. Each of `stages` ranks has `chunks` of them
// and runs every micro-batch of a step forward and backward through each. A schedule is the order in
// which a stage does that; when, follows from what the others send it (pipeline_timing.h).
//
//   const PipelineSchedule schedule = make_schedule("zb-h1", {.stages = 4, .micro_batches = 8});
//   for (const PipelineAction& action : schedule.actions[stage]) ...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The kinds of computation of a stage for a micro-batch.
enum class PipelineWork : uint8_t {
  kForward,
  kBackward,        // of inputs and of weights
  kBackwardInput,   // of inputs alone: what the stage before waits for
  kBackwardWeight,  // of weights, later: no rank waits for it
};
// 'F', 'B', 'I', 'W'
LOCKSTEP_API char letter_of(PipelineWork work);

// One computation of a stage.
struct PipelineAction {
  PipelineWork work = PipelineWork::kForward;
  int chunk = 0;  // of the model
  int micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};
// "F3", "I0 of chunk 5": `chunks` of the schedule decides whether the chunk is said.
LOCKSTEP_API std::string to_string(const PipelineAction& action, int chunks = 1);

struct LOCKSTEP_API PipelineSchedule {
  std::string name;
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;                                    // of a stage
  std::vector<int> stage_of;                         // of each chunk of the model
  std::vector<std::vector<PipelineAction>> actions;  // of each stage, in its order

  int all_chunks() const { return stages * chunks; }  // of the model
  // The stage's chunks, ascending.
  std::vector<int> chunks_of(int stage) const;
};

// How large a schedule is.
struct PipelineSize {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 0;  // of a stage; 0: what the schedule is usually run with
};

// gpipe        all forwards, then all backwards (Huang et al., arXiv:1811.06965)
// 1f1b         a stage holds as many micro-batches as stages follow it, itself included
//              (Narayanan et al., arXiv:2006.09503: PipeDream-Flush)
// interleaved  1f1b with several chunks a stage, dealt round robin (Narayanan et al.,
//              arXiv:2104.04473); 2 by default
// zb-h1        1f1b whose gradients of weights come later, in no more memory than 1f1b's first stage
//              (Qi et al., arXiv:2401.10241)
// zb-v         two chunks a stage, dealt there and back (the same, section 6, and Qi et al.,
//              arXiv:2405.15362: V-ZB)
// Micro-batches of a chunk come in ascending order in all of them.
LOCKSTEP_API const std::vector<std::string>& schedule_names();

// Any number of stages and micro-batches from 1 on, but for interleaved: it goes round in groups of
// about as many micro-batches as there are stages, so these must divide into micro_batches / stages,
// rounded down, groups. Throws InvalidArgument in one line, with what to give.
LOCKSTEP_API PipelineSchedule make_schedule(std::string_view name, const PipelineSize& size);

}  // namespace lockstep::inline v0
