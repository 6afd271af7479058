// LoopPoint: where a TrainLoop stands between a step's update and what follows it (its log, its
// evaluation, its checkpoint), or before its first step. Not a public header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::inline v0 {

// A value of this rank. A loop over the same data that continues there does what this one would
// have done.
struct LoopPoint {
  TrainerState state;  // the step counted
  bool after_update = true;
  // The loss, samples and targets of the step that callbacks are still to be told of.
  DeviceScalar loss = 0;
  int64_t samples = 0, targets = -1;
  // These include that step.
  RunningLoss since_log, of_epoch;
  int64_t counted = 0, uncounted = 0, uncounted_steps = 0;
  int64_t evaluated_step = -1;
  std::vector<std::string> callbacks;  // TrainCallback::state(), before they are told of the step
  // The same of ranks that are gone, for TrainCallback::add_state().
  std::vector<std::vector<std::string>> inherited = {};

  bool operator==(const LoopPoint&) const = default;
};

// Adds the sums of a rank that is gone and stood at the same step.
LOCKSTEP_API void inherit(LoopPoint& point, const LoopPoint& of_gone);

// All of its bits, as bytes. Reading throws DataError.
LOCKSTEP_API std::string to_bytes(const LoopPoint& point);
LOCKSTEP_API LoopPoint loop_point_from(const std::string& bytes);

}  // namespace lockstep::inline v0
