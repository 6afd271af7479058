// A step's gradient is that of one batch, however its samples and targets lie in micro-batches and
// on ranks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::accumulation_test {
namespace {

constexpr int64_t kPlaces = 5, kClasses = 3;

// A linear layer of float64 that is the same wherever it is made.
torch::nn::Linear make_net(int64_t out) {
  torch::nn::Linear net(4, out);
  net->to(at::kDouble);
  const at::NoGradGuard no_grad;
  net->weight.copy_(at::linspace(-0.8, 0.9, 4 * out, at::kDouble).view({out, 4}));
  net->bias.zero_();
  return net;
}

// Rows of kPlaces targets, of which many are missing: the first four rows have none at all.
struct Rows {
  at::Tensor input, target;
  explicit Rows(int64_t count) {
    input = at::arange(count * 4, at::kDouble).view({count, 4}).mul(1.7).sin();
    target = at::arange(count * kPlaces, at::kLong).view({count, kPlaces}).remainder(kClasses);
    for (int64_t row = 0; row < count; ++row)
      target[row].slice(0, row < 4 ? 0 : row % kPlaces).fill_(-100);
  }
  int64_t size() const { return input.size(0); }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    return {input.index_select(0, rows), target.index_select(0, rows)};
  }
};

// The mean over samples.
struct SampleLoss {
  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    const at::Tensor output = model(batch.input);
    return {output.pow(2).sum(1).mean(), output, batch.target.select(1, 0)};
  }
};

// The mean over targets.
struct TargetLoss {
  int64_t targets(const data::Batch& batch) const {
    return batch.target.ne(-100).sum().item<int64_t>();
  }
  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    const at::Tensor output = model(batch.input);
    return {
        torch::nn::functional::cross_entropy(output.view({-1, kClasses}), batch.target.flatten()),
        output, batch.target.select(1, 0)};
  }
};

// The same made by hand: of no targets 0 / 0, and so are its gradients.
struct HandMadeLoss : TargetLoss {
  template <typename Model>
  LossOutput operator()(Model& model, const data::Batch& batch) const {
    const at::Tensor output = model(batch.input);
    const at::Tensor each = torch::nn::functional::cross_entropy(
        output.view({-1, kClasses}), batch.target.flatten(),
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
    const at::Tensor known = batch.target.flatten().ne(-100).to(at::kDouble);
    return {(each * known / known.sum()).sum(), output, batch.target.select(1, 0)};
  }
};

struct Way {
  std::string strategy;
  int ranks;
  int64_t batch, accumulation;
};

struct Outcome {
  at::Tensor weight;
  double training_loss = 0, eval_loss = 0;
};

// After one step of all samples. With an epsilon that large Adam's step is proportional to the
// gradient.
template <typename Loss>
Outcome after_a_step(const Rows& rows, const Way& way) {
  Outcome outcome;
  const TestDirectory folder;
  testing::run_threads(way.ranks, [&](Communicator& comm) {
    torch::nn::Linear net = make_net(kPlaces * kClasses);
    Trainer<torch::nn::Linear, Rows, Loss> trainer(
        {.model = net,
         .comm = comm,
         .args = {.output_dir = folder.path().string(),
                  .per_device_train_batch_size = way.batch,
                  .per_device_eval_batch_size = 3,
                  .gradient_accumulation_steps = way.accumulation,
                  .num_train_epochs = 1,
                  .learning_rate = 1,
                  .weight_decay = 0,
                  .adam_epsilon = 1e3,
                  .max_grad_norm = 0,
                  .lr_scheduler_type = "constant",
                  .save_strategy = "no",
                  .disable_tqdm = true},
         .train_dataset = &rows,
         .eval_dataset = &rows,
         .strategy = make_strategy(way.strategy)});
    const double eval_loss = *find_metric(trainer.evaluate(), "eval_loss");
    const TrainOutput output = trainer.train();
    EXPECT_EQ(output.global_step, 1);
    if (comm.rank() == 0) outcome = {net->weight.detach().clone(), output.training_loss, eval_loss};
  });
  return outcome;
}

template <typename Loss>
void expect_one_mean(const Rows& rows, const std::vector<Way>& ways) {
  const Outcome one = after_a_step<Loss>(rows, {"ddp", 1, rows.size(), 1});
  const at::Tensor moved = one.weight - make_net(kPlaces * kClasses)->weight;
  ASSERT_GT(moved.abs().max().template item<double>(), 1e-5);
  for (const Way& way : ways) {
    SCOPED_TRACE(way.strategy + " on " + std::to_string(way.ranks) + ", batches of " +
                 std::to_string(way.batch));
    const Outcome other = after_a_step<Loss>(rows, way);
    EXPECT_TRUE(at::allclose(other.weight, one.weight, 0, 1e-15))
        << (other.weight - one.weight).abs().max();
    EXPECT_NEAR(other.training_loss, one.training_loss, 1e-12);
    EXPECT_NEAR(other.eval_loss, one.eval_loss, 1e-12);
  }
}

TEST(Accumulation, MicroBatchesOfUnequalSizeAreOneBatch) {
  expect_one_mean<SampleLoss>(Rows(14), {{"ddp", 1, 4, 4},
                                         {"ddp", 1, 5, 3},
                                         {"ddp", 2, 2, 4},
                                         {"average", 2, 3, 3},
                                         {"zero1", 2, 2, 4},
                                         {"zero2", 2, 2, 4}});
}

// The weight after a step of batches of four samples, of which ranks have different numbers, and in
// the last batch some have none.
template <typename Loss>
at::Tensor after_shared_batches(const Rows& rows, int ranks) {
  at::Tensor weight;
  testing::run_threads(ranks, [&](Communicator& comm) {
    torch::nn::Linear net = make_net(kPlaces * kClasses);
    TrainSpec spec{.step = spec_of(TrainingArguments{.learning_rate = 1,
                                                     .weight_decay = 0,
                                                     .adam_epsilon = 1e3,
                                                     .max_grad_norm = 0,
                                                     .lr_scheduler_type = "constant"})
                               .step,
                   .epochs = 1};
    spec.data.step_samples = 4;
    spec.step.accumulation = (rows.size() - 1) / 4 + 1;
    const auto strategy = std::shared_ptr<Strategy>(make_strategy("ddp"));
    ModelOnRanks run({.model = net.ptr(), .strategy = strategy, .comm = comm, .step = spec.step});
    const DealtSamples dealt = deal(spec.data, rows.size(), *strategy, comm);
    data::Loader loader(rows, *dealt.sampler, loader_options(spec.data, dealt, at::kCPU));
    StrategyModel<torch::nn::Linear> model(net, strategy);
    Loss loss;
    SupervisedTask<torch::nn::Linear, Rows, Loss> task(
        {.model = model,
         .loader = loader,
         .loss = loss,
         .step = {.run = run, .spec = spec, .dealt = dealt}});
    const TrainTask steps = task.task({});
    EXPECT_EQ(steps.steps_per_epoch, 1);
    steps.begin_epoch(0, 0);
    const at::Tensor samples = at::full({1}, steps.step().samples, at::kLong);
    comm.all_reduce(samples);
    EXPECT_EQ(samples.item<int64_t>(), rows.size());
    if (comm.rank() == 0) weight = net->weight.detach().clone();
  });
  return weight;
}

TEST(Accumulation, BatchesThatRanksShareUnequallyAreOneBatch) {
  const Rows rows(14);
  const at::Tensor samples = after_a_step<SampleLoss>(rows, {"ddp", 1, 14, 1}).weight,
                   targets = after_a_step<TargetLoss>(rows, {"ddp", 1, 14, 1}).weight;
  for (const int ranks : {1, 3}) {
    EXPECT_TRUE(at::allclose(after_shared_batches<SampleLoss>(rows, ranks), samples, 0, 1e-15));
    EXPECT_TRUE(at::allclose(after_shared_batches<TargetLoss>(rows, ranks), targets, 0, 1e-15));
  }
}

TEST(Accumulation, FewerRanksShareTheSamplesOfTheSameSteps) {
  const auto strategy = make_strategy("ddp");
  const TrainSpec::Data data{.batch_size = 4};
  EXPECT_EQ(dealt_anew(data, *strategy, 4, 4).batch_size, 4);
  EXPECT_EQ(dealt_anew(data, *strategy, 4, 2).batch_size, 8);
  EXPECT_EQ(dealt_anew(data, *strategy, 4, 2).step_samples, 0);
  const TrainSpec::Data three = dealt_anew(data, *strategy, 4, 3);
  EXPECT_EQ(three.batch_size, 6);
  EXPECT_EQ(three.step_samples, 16);
  // From the beginning, whichever group there was in between.
  TrainSpec::Data shared{.batch_size = 6, .step_samples = 17};
  EXPECT_EQ(dealt_anew(shared, *strategy, 3, 2).step_samples, 17);
  EXPECT_EQ(dealt_anew(shared, *strategy, 3, 1).batch_size, 17);
  EXPECT_EQ(dealt_anew(data, *make_strategy("logical8"), 4, 2).batch_size, 4) << "of each";
  for (const bool parts : {true, false}) {
    const TrainSpec::Data equal{.batch_size = 4, .fixed_parts = parts, .group_by_length = !parts};
    EXPECT_EQ(dealt_anew(equal, *strategy, 4, 2).batch_size, 8);
    EXPECT_THAT(message_of<InvalidArgument>([&] { dealt_anew(equal, *strategy, 4, 3); }),
                ::testing::HasSubstr("16 samples, which the 3 ranks that are left"));
  }
}

// Micro-batches and ranks without a target included.
TEST(Accumulation, UnequalTargetsAreOneBatch) {
  expect_one_mean<TargetLoss>(Rows(14), {{"ddp", 1, 4, 4},
                                         {"ddp", 1, 1, 14},
                                         {"ddp", 2, 7, 1},
                                         {"ddp", 2, 2, 4},
                                         {"zero1", 2, 1, 7},
                                         {"zero2", 2, 2, 4},
                                         {"horovod", 2, 7, 1}});
}

// Whatever number a loss of nothing is, its batch adds nothing: in a micro-batch and on a rank.
TEST(Accumulation, BatchesWithoutATargetAddNothingThoughTheirLossIsNoNumber) {
  expect_one_mean<HandMadeLoss>(
      Rows(14), {{"ddp", 1, 4, 4}, {"ddp", 1, 1, 14}, {"ddp", 2, 1, 7}, {"zero2", 2, 1, 7}});
  // Ranks that have none: of five rows the first four.
  const Rows rows(5);
  expect_one_mean<HandMadeLoss>(rows, {{"ddp", 5, 1, 1}, {"average", 5, 1, 1}, {"zero1", 5, 1, 1}});
  const Outcome alone = after_a_step<HandMadeLoss>(Rows(8), {"logical4", 1, 2, 1});
  EXPECT_TRUE(
      after_a_step<HandMadeLoss>(Rows(8), {"logical4", 2, 2, 1}).weight.equal(alone.weight));
  EXPECT_TRUE(alone.weight.isfinite().all().item<bool>());
}

// On all ranks: no gradient, no loss, and no evaluation.
TEST(Accumulation, AStepWithoutATargetChangesNothingAndAnEvaluationSaysSo) {
  const Rows rows(4);
  const TestDirectory folder;
  testing::run_threads(2, [&](Communicator& comm) {
    torch::nn::Linear net = make_net(kPlaces * kClasses);
    Trainer<torch::nn::Linear, Rows, HandMadeLoss> trainer(
        {.model = net,
         .comm = comm,
         .args = {.output_dir = folder.path().string(),
                  .per_device_train_batch_size = 1,
                  .num_train_epochs = 1,
                  .learning_rate = 1,
                  .weight_decay = 0,
                  .save_strategy = "no",
                  .disable_tqdm = true},
         .train_dataset = &rows,
         .eval_dataset = &rows});
    const TrainOutput output = trainer.train();
    EXPECT_EQ(output.global_step, 2);
    EXPECT_EQ(output.training_loss, 0);
    EXPECT_TRUE(net->weight.equal(make_net(kPlaces * kClasses)->weight));
    EXPECT_THAT(message_of<InvalidArgument>([&] { trainer.evaluate(); }),
                ::testing::HasSubstr("has no target at all"));
    EXPECT_EQ(trainer.predict(rows).label_ids.size(0), 4) << "which needs none";
  });
}

TEST(Accumulation, LogicalRanksCountByTheirTargetsInTheSameBits) {
  const Rows rows(16);
  const Outcome one = after_a_step<TargetLoss>(rows, {"ddp", 1, 16, 1});
  const Outcome alone = after_a_step<TargetLoss>(rows, {"logical4", 1, 4, 1});
  EXPECT_TRUE(at::allclose(alone.weight, one.weight, 0, 1e-15));
  EXPECT_TRUE(after_a_step<TargetLoss>(rows, {"logical4", 2, 4, 1}).weight.equal(alone.weight));
}

// At the end of an epoch there are fewer.
TEST(Accumulation, AShorterOneOfTheAcceleratorIsOneBatch) {
  const Rows rows(7);
  const auto gradient_of = [&](int64_t batch, int64_t accumulation, int64_t steps) {
    torch::nn::Linear net = make_net(2);
    at::Tensor gradient;
    testing::run_threads(1, [&](Communicator& comm) {
      torch::optim::SGD sgd(net->parameters(), 0.0);
      data::SequentialSampler sampler(rows.size());
      data::Loader loader(rows, sampler, {.batch_size = batch});
      Accelerator accelerator(comm, {.gradient_accumulation_steps = accumulation});
      auto [model, optimizer, batches] = accelerator.prepare(net, sgd, loader);
      int64_t taken = 0;
      for (auto& one : batches) {
        const auto guard = accelerator.accumulate(model);
        optimizer.zero_grad();
        accelerator.backward(model(one.input).pow(2).sum(1).mean());
        taken += optimizer.step() ? 1 : 0;
      }
      EXPECT_EQ(taken, steps);
      gradient = net->weight.grad().clone();
    });
    return gradient;
  };
  const at::Tensor one = gradient_of(7, 1, 1);
  EXPECT_TRUE(at::allclose(gradient_of(1, 8, 1), one, 0, 1e-13));
}

TEST(Accumulation, TheAcceleratorTakesSharesOfBatchesThatCountUnequally) {
  const Rows rows(14);
  const auto loss_of = [](const at::Tensor& output, const at::Tensor& target) {
    return torch::nn::functional::cross_entropy(
        output.view({-1, kClasses}), target.flatten(),
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  };
  const auto targets_of = [](const at::Tensor& target) {
    return target.ne(-100).sum().item<double>();
  };
  torch::nn::Linear one = make_net(kPlaces * kClasses);
  const double all = targets_of(rows.target);
  (loss_of(one(rows.input), rows.target) / all).backward();
  testing::run_threads(2, [&](Communicator& comm) {
    torch::nn::Linear net = make_net(kPlaces * kClasses);
    torch::optim::SGD sgd(net->parameters(), 0.0);
    Accelerator accelerator(comm, {.gradient_accumulation_steps = 2});
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const int64_t begin[] = {4, 6, 7, 12, 14};  // of each rank's first and second batch
    for (int64_t i = 2 * comm.rank(); i < 2 * comm.rank() + 2; ++i) {
      const auto guard = accelerator.accumulate(model);
      const at::Tensor target = rows.target.slice(0, begin[i], begin[i + 1]);
      const double own = targets_of(target);
      accelerator.backward(
          loss_of(model(rows.input.slice(0, begin[i], begin[i + 1])), target) / own, own / all);
    }
    EXPECT_TRUE(at::allclose(net->weight.grad(), one->weight.grad(), 0, 1e-13));
  });
}

TEST(Accumulation, IsRefusedWhereAStepHasItsBatchesAsItIs) {
  testing::run_threads(1, [&](Communicator& comm) {
    const TrainSpec spec{.step = {.accumulation = 2}};
    torch::nn::Linear net = make_net(2);
    ModelOnRanks run({.model = net.ptr(), .strategy = make_strategy("logical8"), .comm = comm});
    const DealtSamples dealt{.data_ranks = comm};
    EXPECT_EQ(
        message_of<InvalidArgument>(
            [&] { TrainStep({.run = run, .spec = spec, .dealt = dealt}, 8); }),
        "TrainStep: gradient_accumulation_steps is 2, and strategy logical8 takes the batches "
        "of several logical ranks a step; leave it at 1");
    const Rows rows(8);
    EXPECT_THAT(
        message_of<InvalidArgument>([&] {
          Trainer<torch::nn::Linear, Rows, SampleLoss>({.model = make_net(2),
                                                        .comm = comm,
                                                        .args = {.gradient_accumulation_steps = 2},
                                                        .train_dataset = &rows,
                                                        .strategy = make_strategy("logical8")});
        }),
        ::testing::HasSubstr("Trainer: gradient_accumulation_steps is 2"));
  });
}

TEST(Accumulation, AShareThatIsNoNumberIsOneLine) {
  testing::run_threads(1, [&](Communicator& comm) {
    torch::nn::Linear net = make_net(2);
    torch::optim::SGD sgd(net->parameters(), 0.0);
    Accelerator accelerator(comm, {});
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor loss = model(Rows(4).input).sum();
    for (const double share : {std::nan(""), -0.5, 1.0 / 0.0})
      EXPECT_THAT(message_of<InvalidArgument>([&] { accelerator.backward(loss, share); }),
                  ::testing::HasSubstr("give this batch's part of the step's targets"));
    accelerator.backward(loss, 0);
    EXPECT_TRUE(net->weight.grad().eq(0).all().item<bool>());
  });
}

}  // namespace
}  // namespace lockstep::inline v0::accumulation_test
