// TensorBoardCallback: writes a run's losses, accuracies and speed for TensorBoard.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <utility>

#include "lockstep/core/export.h"
#include "lockstep/report/tensorboard.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// Writes, by optimizer step: loss/train and samples_per_s at each log; loss/test, accuracy/test,
// the evaluation's other metrics (perplexity/test) and loss/epoch (the mean training loss of the
// epoch) at each epoch's end.
// Requires: rank 0.
class LOCKSTEP_API TensorBoardCallback final : public TrainCallback {
 public:
  explicit TensorBoardCallback(TensorBoardWriter writer) : writer_(std::move(writer)) {}
  void on_log(const TrainerState& state, const LogEvent& event) override;
  void on_epoch(const TrainerState& state, const EpochEvent& event) override;

 private:
  TensorBoardWriter writer_;
};

// Adds a histogram of a tensor's elements; any device, dtype and strides.
LOCKSTEP_API void add_histogram(TensorBoardWriter& writer, std::string_view tag,
                                const at::Tensor& tensor, int64_t step);

}  // namespace lockstep::inline v0
