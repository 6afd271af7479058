// Trainer and its parts on devices that the host plays.
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/class_loss_test.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::testing {
namespace {

struct Waves {
  at::Tensor input = at::linspace(-1, 1, 64).view({32, 2}).mul(7).sin();
  at::Tensor target = (input.select(1, 0) * 3 > input.select(1, 1)).to(at::kLong);
  int64_t size() const { return input.size(0); }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    return {input.index_select(0, rows), target.index_select(0, rows)};
  }
};

struct WaveNetImpl : torch::nn::Module {
  explicit WaveNetImpl(double dropped = 0) {
    first = register_module("first", torch::nn::Linear(2, 8));
    dropout = register_module("dropout", torch::nn::Dropout(dropped));
    second = register_module("second", torch::nn::Linear(8, 2));
    const torch::NoGradGuard no_grad;
    double value = 0;
    for (at::Tensor& p : parameters())
      p.copy_(at::linspace(-0.5, 0.5, p.numel()).view(p.sizes()).add(value += 0.01));
  }
  at::Tensor forward(const at::Tensor& x) { return second(dropout(torch::tanh(first(x)))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(WaveNet);

using WaveTrainer = Trainer<WaveNet, Waves, ClassLoss>;

// The stops of the training thread, step by step.
struct StopsOfSteps : TrainCallback {
  Counting counting;
  std::vector<int64_t> stops;
  void on_step(const TrainerState&, const StepResult&) override {
    stops.push_back(counting.stops());
  }
};

struct TrainerOutcome {
  std::vector<at::Tensor> parameters;  // of rank 0, on the CPU
  double loss = 0, eval_loss = 0;
  std::vector<int64_t> stops;  // of rank 0, counted through
  std::vector<std::string> places;
};

class TrainerOnDevice : public WithoutRaces {
 protected:
  TrainingArguments arguments() const {
    return {.output_dir = (folder_ / "run").string(),
            .per_device_train_batch_size = 4,
            .per_device_eval_batch_size = 3,
            .num_train_epochs = 2,
            .learning_rate = 0.1,
            .logging_steps = 3,
            .save_strategy = "no",
            .disable_tqdm = true};
  }

  TrainerOutcome train(const Communicator& comm, const TrainingArguments& args,
                       double dropped = 0) {
    at::set_num_threads(1);
    const Waves waves;
    const auto stops = std::make_shared<StopsOfSteps>();
    WaveTrainer trainer({.model = WaveNet(dropped),
                         .comm = comm,
                         .args = args,
                         .train_dataset = &waves,
                         .eval_dataset = &waves,
                         .callbacks = {stops}});
    TrainerOutcome outcome;
    outcome.loss = trainer.train().training_loss;
    outcome.places = stops->counting.stop_places();
    outcome.stops = stops->stops;
    for (const auto& [name, value] : trainer.evaluate())
      if (name == "eval_loss") outcome.eval_loss = value;
    for (const at::Tensor& parameter : trainer.model()->parameters()) {
      EXPECT_EQ(parameter.device(), comm.device());
      outcome.parameters.push_back(parameter.detach().cpu().clone());
    }
    return outcome;
  }

  TestDirectory folder_;
};

void expect_equal(const TrainerOutcome& ours, const TrainerOutcome& theirs) {
  ASSERT_EQ(ours.parameters.size(), theirs.parameters.size());
  for (size_t i = 0; i < ours.parameters.size(); ++i)
    EXPECT_TRUE(ours.parameters[i].allclose(theirs.parameters[i], 1e-5, 1e-6)) << i;
  EXPECT_NEAR(ours.loss, theirs.loss, 1e-6);
  EXPECT_NEAR(ours.eval_loss, theirs.eval_loss, 1e-6);
}

TEST_F(TrainerOnDevice, TrainsAsOnTheCpu) {
  Mutex mutex;
  TrainerOutcome cpu, cuda_outcome;
  const auto keep = [&mutex](const Communicator& comm, TrainerOutcome& place,
                             TrainerOutcome outcome) {
    const MutexLock lock(mutex);
    if (comm.rank() == 0) place = std::move(outcome);
  };
  run_threads(2, [&](Communicator& comm) { keep(comm, cpu, train(comm, arguments())); });
  run_on_nccl(2, [&](Communicator& comm) { keep(comm, cuda_outcome, train(comm, arguments())); });
  expect_equal(cuda_outcome, cpu);
}

// Between two logs the host only gives; a log reads the losses.
TEST_F(TrainerOnDevice, DoesNotWaitBetweenLogs) {
  const TrainerOutcome outcome = train(init({.device = "cuda:0"}), arguments());
  ASSERT_EQ(outcome.stops.size(), 16U);
  std::string places;
  for (const std::string& place : outcome.places) places += "\n  " + place;
  // on_step() comes before the step's log. Step 1 is logged besides.
  for (size_t i = 2; i < 8; ++i) {
    const bool logged_before = i % 3 == 0;
    EXPECT_EQ(outcome.stops[i] - outcome.stops[i - 1] > 0, logged_before)
        << "step " << i + 1 << ": " << outcome.stops[i] - outcome.stops[i - 1] << " stops"
        << places;
  }
}

// A device leaves out a step whose gradients are not finite, and the host learns of it later: at
// the latest before a checkpoint, which would otherwise be of a run that has silently stood still.
TEST_F(TrainerOnDevice, AStepThatWasLeftOutIsFoundBeforeACheckpointAndAtTheEnd) {
  Waves waves;
  waves.input[5][0] = std::numeric_limits<float>::infinity();
  for (const char* saves : {"epoch", "no"}) {
    TrainingArguments args = arguments();
    args.output_dir = (folder_ / saves).string();
    args.logging_steps = 1000;
    args.save_strategy = saves;
    const std::string message = message_of<Error>([&] {
      WaveTrainer({.model = WaveNet(),
                   .comm = init({.device = "cuda:0"}),
                   .args = args,
                   .train_dataset = &waves})
          .train();
    });
    EXPECT_NE(message.find("not finite in a step since the last log or checkpoint"),
              std::string::npos)
        << message;
    EXPECT_FALSE(checkpoint_exists(folder_ / saves / "last"));
  }
}

// The device's generator is in the checkpoint.
TEST_F(TrainerOnDevice, AResumedRunWithDropoutIsTheSameInEveryBit) {
  Communicator comm = init({.device = "cuda:0"});
  TrainingArguments args = arguments();
  args.save_strategy = "epoch";
  torch::manual_seed(7);
  const TrainerOutcome whole = train(comm, args, 0.5);
  args.resume_from_checkpoint = (folder_ / "run" / "checkpoint-8").string();
  torch::manual_seed(8);
  const TrainerOutcome resumed = train(comm, args, 0.5);
  ASSERT_EQ(resumed.parameters.size(), whole.parameters.size());
  for (size_t i = 0; i < whole.parameters.size(); ++i)
    EXPECT_TRUE(whole.parameters[i].equal(resumed.parameters[i])) << i;
}

}  // namespace
}  // namespace lockstep::inline v0::testing
