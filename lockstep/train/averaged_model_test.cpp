#include "lockstep/train/averaged_model.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/class_loss_test.h"
#include "lockstep/train/normed_net.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::averaged_model_test {
namespace {

using ::testing::HasSubstr;
using train_test::NormedNet;

// Two classes of points in a plane.
struct Points {
  at::Tensor input, target;
  explicit Points(int64_t count) {
    input = at::linspace(-1, 1, count * 2, at::kDouble).view({2, count}).t().contiguous().sin();
    target = (input.select(1, 0) * 3 > input.select(1, 1)).to(at::kLong);
  }
  int64_t size() const { return input.size(0); }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    return {input.index_select(0, rows), target.index_select(0, rows)};
  }
};

using NormedTrainer = Trainer<NormedNet, Points, ClassLoss>;

NormedNet make_net() {
  torch::nn::Linear head(2, 2);
  head->to(at::kDouble);
  const at::NoGradGuard no_grad;
  head->weight.copy_(at::tensor({0.1, -0.2, 0.3, 0.05}, at::kDouble).view({2, 2}));
  head->bias.zero_();
  return NormedNet(head);
}

TrainingArguments arguments(const TestDirectory& dir, const std::string& output) {
  return {.output_dir = dir / output,
          .per_device_train_batch_size = 4,
          .per_device_eval_batch_size = 3,
          .max_steps = 6,
          .learning_rate = 0.1,
          .lr_scheduler_type = "constant",
          .eval_strategy = "steps",
          .eval_steps = 3,
          .save_strategy = "steps",
          .save_steps = 3,
          .ema = 0.5,
          .disable_tqdm = true};
}

NamedTensors copied(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

void expect_equal(const NamedTensors& found, const NamedTensors& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  const std::map<std::string, at::Tensor> by_name(expected.begin(), expected.end());
  for (const auto& [name, tensor] : found)
    EXPECT_TRUE(tensor.equal(by_name.at(name))) << what << ": " << name;
}

// What rank 0 of two has after train(): the model in memory, and what it says of itself.
struct Trained {
  NamedTensors model;
  double loss_after = 0;
  NamedTensors saved_alone;
};

Trained train(const TestDirectory& dir, const TrainingArguments& args) {
  Trained result;
  const Points points(32), dev(11);
  testing::run_threads(2, [&](Communicator& comm) {
    NormedTrainer trainer({.model = make_net(),
                           .comm = comm,
                           .args = args,
                           .train_dataset = &points,
                           .eval_dataset = &dev});
    trainer.train();
    if (comm.rank() == 0) result.model = copied(module_state(trainer.model()));
    const double after = *find_metric(trainer.evaluate(), "eval_loss");
    trainer.save_model(dir / "alone");
    if (comm.rank() == 0) {
      result.loss_after = after;
      expect_equal(module_state(trainer.model()), result.model, "evaluating changes nothing");
    }
  });
  result.saved_alone = read_checkpoint(dir / "alone").model.tensors;
  std::filesystem::remove_all(dir / "alone");
  return result;
}

// The loss of a model's tensors on what train() evaluates on.
double loss_of(const NamedTensors& tensors) {
  const Points dev(11);
  NormedNet net = make_net();
  set_module_state(net, tensors, "");
  net->eval();
  const at::NoGradGuard no_grad;
  return torch::nn::functional::cross_entropy(net(dev.input), dev.target).item<double>();
}

TEST(TrainersAverage, IsWhatIsEvaluatedAndSavedAndTrainingGoesOnAsWithoutIt) {
  const TestDirectory dir;
  TrainingArguments args = arguments(dir, "plain");
  args.ema = 0;
  const Trained plain = train(dir, args);
  for (const bool buffers : {false, true}) {
    args = arguments(dir, buffers ? "buffers" : "average");
    args.ema_buffers = buffers;
    const Trained averaged = train(dir, args);
    expect_equal(averaged.model, plain.model, "training");
    const Checkpoint last = read_checkpoint(std::filesystem::path(args.output_dir) / "last");
    expect_equal(averaged.saved_alone, last.model.tensors, "save_model()");
    EXPECT_NEAR(averaged.loss_after, loss_of(last.model.tensors), 1e-12);
    EXPECT_GT(std::abs(averaged.loss_after - plain.loss_after), 1e-6);
    const Safetensors& training = last.tensors.at("training");
    EXPECT_EQ(training.tensors.size(), buffers ? 7u : 4u);
    for (const auto& [name, tensor] : plain.model) {
      const bool is_count = name.ends_with("num_batches_tracked");
      const bool is_buffer = is_count || name.find("running") != std::string::npos;
      // A model of another type has counts of that type, too.
      const bool is_averaged = !is_buffer || (buffers && tensor.is_floating_point());
      EXPECT_EQ(last.model.find(name)->equal(tensor), !is_averaged) << name;
      if (is_buffer && !buffers) continue;
      EXPECT_TRUE(training.find(name)->equal(tensor)) << name;
    }
  }
}

TEST(TrainersAverage, AResumedRunEndsInTheSameBits) {
  const TestDirectory dir;
  TrainingArguments args = arguments(dir, "run");
  args.ema_buffers = true;
  const Trained whole = train(dir, args);
  const std::filesystem::path folder = args.output_dir;
  const Checkpoint expected = read_checkpoint(checkpoint_of_step(folder, 6));
  args.resume_from_checkpoint = checkpoint_of_step(folder, 3).string();
  const Trained resumed = train(dir, args);
  expect_equal(resumed.model, whole.model, "training");
  EXPECT_EQ(resumed.loss_after, whole.loss_after);
  const Checkpoint found = read_checkpoint(checkpoint_of_step(folder, 6));
  expect_equal(found.model.tensors, expected.model.tensors, "the average");
  expect_equal(found.tensors.at("training").tensors, expected.tensors.at("training").tensors,
               "of training");
  args.ema_buffers = false;
  EXPECT_THAT(message_of<Error>([&] { train(dir, args); }), HasSubstr("and the model has not"));
}

// The best model is an average, which load_best_model_at_end puts into the model.
TEST(TrainersAverage, TheBestModelIsOne) {
  const TestDirectory dir;
  TrainingArguments args = arguments(dir, "run");
  args.load_best_model_at_end = true;
  const Trained best = train(dir, args);
  const Checkpoint saved = read_checkpoint(std::filesystem::path(args.output_dir) / "best");
  expect_equal(best.model, saved.model.tensors, "in the model");
  expect_equal(best.saved_alone, saved.model.tensors, "save_model()");
  EXPECT_NEAR(best.loss_after, loss_of(saved.model.tensors), 1e-12);
}

TEST(TrainersAverage, IsRefusedWhereThereIsNone) {
  const TestDirectory dir;
  const Points points(32);
  testing::run_threads(2, [&](Communicator& comm) {
    const auto refused = [&](const char* strategy, const TrainingArguments& args) {
      return message_of<InvalidArgument>([&] {
        const NormedTrainer trainer({.model = make_net(),
                                     .comm = comm,
                                     .args = args,
                                     .train_dataset = &points,
                                     .strategy = make_strategy(strategy)});
      });
    };
    const TrainingArguments args = arguments(dir, "none");
    EXPECT_THAT(refused("zero3", args),
                HasSubstr("ema is 0.5, but under strategy zero3 the ranks divide or share"));
    EXPECT_EQ(
        refused("diloco", args),
        "ema is 0.5, but under strategy diloco the ranks' parameters differ between two outer "
        "steps; give 0");
    TrainingArguments without = args;
    without.ema = 0;
    without.ema_buffers = true;
    EXPECT_EQ(refused("ddp", without),
              "ema_buffers is true, and there is no average; give ema, too");
    without.ema = 1;
    EXPECT_EQ(refused("ddp", without), "ema is 1.0; give 0 or more, and less than 1");
  });
}

}  // namespace
}  // namespace lockstep::inline v0::averaged_model_test
