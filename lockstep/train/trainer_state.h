// TrainerState: the position of a training, as a value.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/export.h"
#include "lockstep/train/device_scalar.h"

namespace lockstep::inline v0 {

// The same on every rank. A resumed run starts from it, and from the parameters, the optimizer and
// the generators.
struct LOCKSTEP_API TrainerState {
  int64_t epoch = 0;          // epochs completed
  int64_t step_in_epoch = 0;  // steps done of the epoch under way
  int64_t step = 0;           // optimizer steps since the start
  // Samples seen by all ranks. It is exact at logs, evaluations, saves and the ends of epochs; in
  // between it assumes that all ranks have this one's batches.
  int64_t samples = 0;
  double seconds = 0;      // of training and evaluation, the former runs' included
  double best_score = -1;  // of all evaluations (TrainLoopOptions::score); -1: none
  int64_t best_step = 0;   // the step of that evaluation
  double accuracy = -1;    // of the latest evaluation; -1: none yet
  // The length of metrics.jsonl. Lines beyond it belong to steps that a resumed run takes again.
  int64_t metrics_bytes = 0;
  int64_t steps_per_epoch = 0;  // of the data and the batch of all ranks; 0: not known

  bool operator==(const TrainerState&) const = default;
};

// A mean over samples that this rank is adding up.
struct LOCKSTEP_API RunningLoss {
  DeviceScalar loss = 0;  // sum over samples, or over targets (StepResult::targets)
  double samples = 0;     // of this rank; likewise

  // The mean of `count` samples.
  void add(const DeviceScalar& mean, int64_t count) {
    if (count == 0) return;  // the mean of nothing is no number
    loss.add(mean, static_cast<double>(count));
    samples += static_cast<double>(count);
  }
  // 0 of nothing.
  DeviceScalar mean() const { return samples > 0 ? loss.over(samples) : DeviceScalar(); }
  bool operator==(const RunningLoss&) const = default;
};

// JSON with a member for each field. Reading throws CheckpointError that begins with `source` if a
// field is missing or impossible.
LOCKSTEP_API std::string to_json(const TrainerState& state);
LOCKSTEP_API TrainerState trainer_state_from_json(const std::string& text,
                                                  const std::string& source);

}  // namespace lockstep::inline v0
