#include "lockstep/optim/step_spec.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "lockstep/core/errors.h"
#include "lockstep/optim/configured_optimizer.h"

namespace lockstep::inline v0::optim::step_spec_test {
namespace {

TEST(RatesOf, AreTheFactorsOfTheScheduleOfThatName) {
  StepSpec spec{.optimizer = {.lr = 3}, .schedule = {.warmup_steps = 2}};
  const ScheduleOptions options{.total_steps = 10, .warmup = {.steps = 2}};
  const auto rate = [&](const char* name, int64_t step) {
    spec.schedule.name = name;
    return rates_of(spec, 10, 5)(step);
  };
  for (const int64_t step : {0, 1, 5, 9}) {
    EXPECT_EQ(rate("constant", step), 3 * constant(options).factor(step));
    EXPECT_EQ(rate("linear", step), 3 * linear(options).factor(step));
    EXPECT_EQ(rate("cosine", step), 3 * cosine(options).factor(step));
  }
  EXPECT_THROW(rate("step", 0), InvalidArgument);
}

TEST(RatesOf, AWarmupIsOfStepsOrEpochsOrAPartOfTheRun) {
  const auto second = [](const ScheduleSpec& schedule) {
    return rates_of({.optimizer = {.lr = 1}, .schedule = schedule}, 100, 10)(1);
  };
  EXPECT_EQ(second({.warmup_steps = 4}), 0.25);
  EXPECT_EQ(second({.warmup_epochs = 0.8}), 0.125);
  EXPECT_EQ(second({.warmup_ratio = 0.16}), 0.0625);
  EXPECT_EQ(second({.warmup_steps = 4, .warmup_ratio = 0.16}), 0.25);
}

TEST(RatesOf, DeepSpeedsScheduleStandsInPlaceOfAName) {
  const WarmupSchedule schedule{.warmup_num_steps = 10};
  const StepSpec spec{.optimizer = {.lr = 0.1},
                      .schedule = {.name = "linear", .deepspeed = schedule}};
  for (const int64_t step : {0, 1, 7, 30})
    EXPECT_EQ(rates_of(spec, 0, 0)(step), warmup_rate(schedule, 0.1, step));
}

TEST(ConfiguredOptimizer, HasWhatTheSpecSays) {
  const auto sgd = std::get<torch::optim::SGDOptions>(algorithm_of(
      {.type = OptimizerType::kSgd, .lr = 0.5, .weight_decay = 0.25, .momentum = 0.75}));
  EXPECT_EQ(sgd.lr(), 0.5);
  EXPECT_EQ(sgd.momentum(), 0.75);
  EXPECT_EQ(sgd.weight_decay(), 0.25);
  const auto adam = std::get<torch::optim::AdamOptions>(
      algorithm_of({.type = OptimizerType::kAdam, .beta2 = 0.5, .amsgrad = true}));
  EXPECT_EQ(std::get<1>(adam.betas()), 0.5);
  EXPECT_TRUE(adam.amsgrad());
  EXPECT_TRUE(std::holds_alternative<torch::optim::AdamWOptions>(algorithm_of({})));
}

TEST(ConfiguredOptimizer, DecayIsForAllUnlessARuleLeavesSomeOut) {
  const torch::nn::Sequential net(torch::nn::Linear(2, 2),
                                  torch::nn::LayerNorm(torch::nn::LayerNormOptions({2})));
  OptimizerSpec spec{.weight_decay = 0.5};
  ASSERT_EQ(parameter_groups(*net, spec).size(), 1U);
  EXPECT_EQ(parameter_groups(*net, spec).front().params().size(), 4U);
  spec.no_decay = NoDecay{};
  const auto groups = parameter_groups(*net, spec);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].params().size(), 1U);
  const auto decay = [](const torch::optim::OptimizerParamGroup& group) {
    return static_cast<const torch::optim::AdamWOptions&>(group.options()).weight_decay();
  };
  EXPECT_EQ(decay(groups[0]), 0.5);
  EXPECT_EQ(decay(groups[1]), 0);
}

}  // namespace
}  // namespace lockstep::inline v0::optim::step_spec_test
