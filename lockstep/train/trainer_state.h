// Where training stands, as a value.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/train/device_scalar.h"

namespace lockstep {

// The same on every rank. What a resumed run starts from, beside the parameters, the optimizer and
// the generators.
struct TrainerState {
  int64_t epoch = 0;          // epochs completed
  int64_t step_in_epoch = 0;  // steps done of the epoch under way
  int64_t step = 0;           // optimizer steps since the start
  // Samples seen by all ranks: counted at logs, evaluations, saves and the ends of epochs; in
  // between, what it would be if all ranks had this one's batches.
  int64_t samples = 0;
  double seconds = 0;      // of training and evaluation, the former runs' included
  double best_score = -1;  // of all evaluations: the accuracy, or what the loop is told; -1: none
  int64_t best_step = 0;   // when it was reached
  double accuracy = -1;    // of the latest evaluation; -1: none yet
  // Length of metrics.jsonl: what is after it belongs to steps that a resumed run takes again.
  int64_t metrics_bytes = 0;
  int64_t steps_per_epoch = 0;  // of the data and the batch of all ranks; 0: not known

  bool operator==(const TrainerState&) const = default;
};

// What this rank has added up: a mean over samples under way.
struct RunningLoss {
  DeviceScalar loss = 0;  // sum over samples, or over what StepResult::targets counts
  double samples = 0;     // of this rank; likewise

  void add(const DeviceScalar& mean, int64_t count) {
    if (count == 0) return;  // the mean of nothing is no number
    loss.add(mean, static_cast<double>(count));
    samples += static_cast<double>(count);
  }
  // 0 of nothing.
  DeviceScalar mean() const { return samples > 0 ? loss.over(samples) : DeviceScalar(); }
  bool operator==(const RunningLoss&) const = default;
};

// JSON, one member a field. Reading throws CheckpointError that begins with `source` unless all
// fields are there and sensible.
std::string to_json(const TrainerState& state);
TrainerState trainer_state_from_json(const std::string& text, const std::string& source);

}  // namespace lockstep
