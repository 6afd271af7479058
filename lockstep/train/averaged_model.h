// An exponential moving average of the parameters in a run of run_loop() (TrainSpec::ema): every
// rank keeps it, evaluations are of it, and a checkpoint's model is the average, so that `lockstep
// eval`, predict and export use it. Beside it the checkpoint has the parameters as training has
// them, "training.safetensors", from which a run resumes. Not a public header.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/optim/exponential_average.h"
#include "lockstep/train/model_on_ranks.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// The average for a run, with the warm-up; null for a decay of 0.
// Collective: all ranks, with the same decay.
// Throws: Mismatch for different decays; InvalidArgument where ranks divide or share the parameters, where they are replaced, and
// for parameters of 16 bits.
std::shared_ptr<optim::ExponentialAverage> average_of_run(ModelOnRanks& run, double decay);

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

// Adds the parameters of training to rank 0's share of a checkpoint.
// Requires: the average is in the model until the share is written or copied.
void add_training_parameters(const optim::ExponentialAverage& average, Checkpoint& checkpoint);

// Takes the average out of a checkpoint's model, in which the parameters of training are put in its
// place.
// Throws: CheckpointError that begins with `source`.
void take_average(optim::ExponentialAverage& average, const torch::nn::Module& model,
                  Checkpoint& checkpoint, const std::string& source);

}  // namespace lockstep::inline v0
