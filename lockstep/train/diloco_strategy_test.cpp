#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/class_loss_test.h"
#include "lockstep/train/normed_net.h"
#include "lockstep/train/replica_check.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::diloco_strategy_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using train_test::NormedNet;

// Points in a plane, of which ranks that deal them see different ones.
struct Points {
  at::Tensor input, target;
  explicit Points(int64_t count) {
    input = at::arange(count * 2, at::kDouble).view({count, 2}).sin();
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

std::shared_ptr<Strategy> diloco(int64_t period) {
  return make_strategy("diloco", {.diloco = DiLoCoOptions{.period = period}});
}

NamedTensors copied(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

void expect_equal(const NamedTensors& found, const NamedTensors& expected,
                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  const std::map<std::string, at::Tensor> by_name(expected.begin(), expected.end());
  for (const auto& [name, tensor] : found)
    EXPECT_TRUE(tensor.equal(by_name.at(name))) << what << ": " << name;
}

// The models of all ranks after a run, by rank.
using Models = std::vector<NamedTensors>;

class DiLoCoStrategy : public ::testing::Test {
 protected:
  TrainingArguments arguments(int64_t ranks, int64_t max_steps) const {
    return {.output_dir = dir_ / "run",
            .per_device_train_batch_size = 12 / ranks,
            .max_steps = max_steps,
            .learning_rate = 0.05,
            .max_grad_norm = 0.5,
            .lr_scheduler_type = "constant",
            .save_strategy = "no",
            .disable_tqdm = true};
  }
  static Models train(int ranks, const TrainingArguments& args,
                      const std::function<std::shared_ptr<Strategy>()>& strategy) {
    const Points points(48), dev(7);
    Models models(static_cast<size_t>(ranks));
    testing::run_threads(ranks, [&](Communicator& comm) {
      NormedTrainer trainer({.model = make_net(),
                             .comm = comm,
                             .args = args,
                             .train_dataset = &points,
                             .eval_dataset = &dev,
                             .strategy = strategy()});
      trainer.train();
      models[static_cast<size_t>(comm.rank())] = copied(module_state(trainer.model()));
    });
    return models;
  }
  fs::path checkpoint(int64_t step) const { return checkpoint_of_step(dir_ / "run", step); }

  TestDirectory dir_;
};

// With an outer step after each step, rate 1 and no momentum, and SGD inside, it is ddp.
TEST(DiLoCoStrategyAlone, AveragingEachStepIsDdp) {
  const Points points(24);
  std::map<std::string, NamedTensors> found;
  for (const std::string name : {"ddp", "diloco"}) {
    testing::run_threads(2, [&](Communicator& comm) {
      StrategyOptions options;
      if (name == "diloco") options.diloco = DiLoCoOptions{.period = 1, .lr = 1, .momentum = 0};
      const auto strategy = make_strategy(name, options);
      torch::nn::Linear net(2, 2);
      net->to(at::kDouble);
      const at::NoGradGuard no_grad;
      net->weight.fill_(0.1 * (1 + comm.rank()));
      net->bias.zero_();
      StrategyModel<torch::nn::Linear> model(net, strategy, comm);
      EXPECT_EQ(net->weight[0][0].item<double>(), 0.1) << "rank 0's";
      const auto optimizer =
          strategy->state().make_optimizer({net->parameters()}, torch::optim::SGDOptions(0.5));
      for (int64_t step = 0; step < 6; ++step) {
        const int64_t from = 4 * step + 2 * comm.rank();
        const at::AutoGradMode with_grad(true);
        optimizer->zero_grad();
        strategy->gradients().compute([&] {
          return torch::nn::functional::cross_entropy(model(points.input.narrow(0, from, 2)),
                                                      points.target.narrow(0, from, 2));
        });
        EXPECT_TRUE(strategy->state().step(*optimizer));
      }
      if (comm.rank() == 0) found[name] = copied(module_state(net));
    });
  }
  for (size_t i = 0; i < found["ddp"].size(); ++i)
    EXPECT_TRUE(at::allclose(found["ddp"][i].second, found["diloco"][i].second, 0, 1e-14));
}

TEST_F(DiLoCoStrategy, RanksTrainApartAndMeetInOuterSteps) {
  const auto apart = train(3, arguments(3, 5), [] { return diloco(3); });
  EXPECT_FALSE(apart[0][0].second.equal(apart[1][0].second)) << "two steps after an outer one";
  expect_equal(train(3, arguments(3, 5), [] { return diloco(3); })[1], apart[1], "once more");
  const auto together = train(3, arguments(3, 6), [] { return diloco(3); });
  for (const int rank : {1, 2})
    expect_equal(together[static_cast<size_t>(rank)], together[0],
                 "buffers are averaged in an outer step, too; rank " + std::to_string(rank));
}

// What is saved and evaluated is the average, and neither changes the course.
TEST_F(DiLoCoStrategy, WhatIsSavedIsTheAverageOfTheRanks) {
  const auto undisturbed = train(2, arguments(2, 8), [] { return diloco(3); });
  for (const bool async_save : {false, true}) {
    TrainingArguments args = arguments(2, 8);
    args.eval_strategy = args.save_strategy = "steps";
    args.eval_steps = args.save_steps = 2;
    args.async_save = async_save;
    const auto models = train(2, args, [] { return diloco(3); });
    for (const size_t rank : {0u, 1u})
      expect_equal(models[rank], undisturbed[rank], "rank " + std::to_string(rank));
    const Checkpoint saved = read_checkpoint(checkpoint(8));
    for (size_t i = 0; i < models[0].size(); ++i) {
      const auto& [name, first] = models[0][i];
      const at::Tensor average =
          first.is_floating_point() ? (first + models[1][i].second) / 2 : first;
      EXPECT_TRUE(saved.model.find(name)->equal(average)) << name;
      EXPECT_EQ(first.equal(models[1][i].second), name.ends_with("num_batches_tracked")) << name;
    }
    EXPECT_TRUE(read_checkpoint(checkpoint(6)).tensors.contains("diloco"));
    EXPECT_FALSE(read_checkpoint(checkpoint(6)).tensors.contains("diloco-rank-0"))
        << "at an outer step rank 0 has nothing of its own";
    EXPECT_TRUE(saved.tensors.contains("diloco-rank-0"));
  }
}

TEST_F(DiLoCoStrategy, AResumedRunEndsInTheSameBits) {
  TrainingArguments args = arguments(3, 10);
  args.save_strategy = "steps";
  args.save_steps = 1;
  const auto whole = train(3, args, [] { return diloco(4); });
  for (const int64_t step : {1, 4, 7}) {  // before, at and behind an outer step
    args.resume_from_checkpoint = checkpoint(step).string();
    const auto resumed = train(3, args, [] { return diloco(4); });
    for (const size_t rank : {0u, 1u, 2u})
      expect_equal(resumed[rank], whole[rank],
                   "from step " + std::to_string(step) + ", rank " + std::to_string(rank));
  }
}

// The average of the recorded ranks ends the period; other ranks begin one from there.
TEST_F(DiLoCoStrategy, OtherRanksAndStrategiesGoOn) {
  TrainingArguments args = arguments(2, 5);
  args.save_strategy = "steps";
  args.save_steps = 5;
  train(2, args, [] { return diloco(3); });
  const Checkpoint saved = read_checkpoint(checkpoint(5));
  const Safetensors& outer = saved.tensors.at("diloco");
  EXPECT_TRUE(outer.find("steps")->equal(at::tensor({2, 1}, at::kLong)));
  const auto expected = [&](const std::string& name) {
    const at::Tensor &before = *outer.find("outer." + name), &mean = *saved.model.find(name);
    at::Tensor gradient = before - mean;
    const at::Tensor momentum = *outer.find("momentum." + name) * 0.9 + gradient;
    return before - (gradient + momentum * 0.9) * 0.7;
  };
  args = arguments(3, 5);  // no step is left
  args.resume_from_checkpoint = checkpoint(5).string();
  const auto three = train(3, args, [] { return diloco(3); });
  for (const NamedTensors& model : three)
    for (const auto& [name, tensor] : model) {
      const bool is_buffer = outer.find("outer." + name) == nullptr;
      const at::Tensor wanted = is_buffer ? *saved.model.find(name) : expected(name);
      EXPECT_TRUE(at::allclose(tensor, wanted, 0, 1e-14)) << name;
    }
  args.max_steps = 8;
  const auto later = train(3, args, [] { return diloco(3); });
  expect_equal(later[2], later[0], "three steps later is an outer one");

  args = arguments(2, 5);
  args.resume_from_checkpoint = checkpoint(5).string();
  expect_equal(train(2, args, [] { return make_strategy("ddp"); })[1], saved.model.tensors, "ddp");
  args.max_steps = 6;
  args.save_strategy = "steps";
  args.save_steps = 6;
  const auto by_ddp = train(2, args, [] { return make_strategy("ddp"); });
  args = arguments(2, 6);
  args.resume_from_checkpoint = checkpoint(6).string();
  expect_equal(train(2, args, [] { return diloco(3); })[0], by_ddp[0], "diloco after ddp");
  args.max_steps = 8;
  const auto within = train(2, args, [] { return diloco(3); });
  EXPECT_FALSE(within[0][0].second.equal(within[1][0].second)) << "a period has begun at step 6";
  args.max_steps = 9;
  const auto at_end = train(2, args, [] { return diloco(3); });
  expect_equal(at_end[0], at_end[1], "and ends at step 9");
}

TEST_F(DiLoCoStrategy, DamageAndMisuseAreNamed) {
  TrainingArguments args = arguments(2, 5);
  args.save_strategy = "steps";
  args.save_steps = 5;
  train(2, args, [] { return diloco(3); });
  args = arguments(2, 8);
  args.resume_from_checkpoint = (dir_ / "damaged").string();
  const auto refused = [&](const std::function<void(Checkpoint&)>& change) {
    Checkpoint saved = read_checkpoint(checkpoint(5));
    change(saved);
    write_checkpoint(dir_ / "damaged", saved);
    return message_of<CheckpointError>([&] { train(2, args, [] { return diloco(3); }); });
  };
  EXPECT_THAT(refused([](Checkpoint& saved) { saved.tensors.erase("diloco-rank-1"); }),
              HasSubstr("damaged: has no diloco-rank-1.safetensors"));
  EXPECT_THAT(refused([](Checkpoint& saved) { saved.tensors.at("diloco").metadata.clear(); }),
              HasSubstr("diloco.safetensors: does not say of how many ranks it is"));
  EXPECT_THAT(refused([](Checkpoint& saved) {
                std::erase_if(saved.tensors.at("diloco").tensors,
                              [](const auto& entry) { return entry.first == "outer.out.bias"; });
              }),
              HasSubstr("diloco.safetensors: DiLoCo: the state has no outer.out.bias"));
  testing::run_threads(2, [&](Communicator& comm) {
    NormedNet net = make_net();
    const auto strategy = diloco(3);
    StrategyModel<NormedNet> model(net, strategy, comm);
    const auto optimizer =
        strategy->state().make_optimizer({net->parameters()}, torch::optim::SGDOptions(0.5));
    strategy->gradients().compute([&] { return model(at::rand({4, 2}, at::kDouble)).sum(); });
    strategy->state().step(*optimizer);
    EXPECT_THAT(message_of<InvalidArgument>([&] { strategy->state().share(*optimizer); }),
                HasSubstr("save under placement().as_saved()"));
    const auto average = strategy->placement().as_saved();
    EXPECT_EQ(average, strategy->placement().whole_parameters()) << "one for all who ask";
    EXPECT_NO_THROW(strategy->state().share(*optimizer));
    EXPECT_THAT(message_of<InvalidArgument>([&] { check_has_replicas(*strategy, 5); }),
                HasSubstr("under strategy diloco the ranks' parameters differ"));
  });
  EXPECT_EQ(message_of<InvalidArgument>([] { make_strategy("ddp", {.diloco = DiLoCoOptions{}}); }),
            "strategy 'ddp': options of DiLoCo are for diloco");
}

}  // namespace
}  // namespace lockstep::inline v0::diloco_strategy_test
