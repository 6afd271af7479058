// An exponential moving average of the parameters in a run of run_loop() (TrainSpec::ema), and of
// the buffers where they are averaged as well: every rank keeps it, evaluations are of it, and a
// checkpoint's model is the average, so that `lockstep eval`, predict and export use it. Beside it
// the checkpoint has the same tensors as training has them, "training.safetensors", from which a
// run resumes. Not a public header.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/optim/exponential_average.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/train_loop.h"
#include "lockstep/train/train_spec.h"

namespace lockstep::inline v0 {

// Throws: InvalidArgument for an average under a strategy in which ranks divide or share the
// parameters, or train apart.
void check_has_average(const Strategy& strategy, double decay);

// The average for a run, with the warm-up; null for a decay of 0.
// Collective: all ranks, with the same settings.
// Throws: Mismatch for different ones; InvalidArgument as check_has_average(), where ranks are
// replaced, and for parameters of 16 bits.
std::shared_ptr<optim::ExponentialAverage> average_of_run(ModelOnRanks& run, const TrainSpec& spec);

// Updates the average after each step. It comes before the callbacks that look at it.
class AverageCallback final : public TrainCallback {
 public:
  explicit AverageCallback(std::shared_ptr<optim::ExponentialAverage> average)
      : average_(std::move(average)) {}
  void on_step(const TrainerState&, const StepResult&) override { average_->update(); }

 private:
  std::shared_ptr<optim::ExponentialAverage> average_;
};

// `evaluate` with the average in the model.
std::function<Evaluation()> of_average(std::shared_ptr<optim::ExponentialAverage> average,
                                       std::function<Evaluation()> evaluate);

// Adds what is averaged, as training has it, to rank 0's share of a checkpoint.
// Requires: the average is in the model until the share is written or copied.
void add_training_parameters(const optim::ExponentialAverage& average, Checkpoint& checkpoint);

// Takes the average out of a checkpoint's model, in which the tensors of training are put in its
// place.
// Throws: CheckpointError that begins with `source`.
void take_average(optim::ExponentialAverage& average, const torch::nn::Module& model,
                  Checkpoint& checkpoint, const std::string& source);

}  // namespace lockstep::inline v0
