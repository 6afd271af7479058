#include "lockstep/optim/exponential_average.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::inline v0::exponential_average_test {
namespace {

using optim::ExponentialAverage;

at::Tensor step_of(const at::Tensor& parameter, int64_t step) {
  return at::linspace(-1, 1, parameter.numel(), parameter.options()).view(parameter.sizes()) *
         static_cast<double>(step);
}

TEST(ExponentialAverage, IsWhatOneComputesByHand) {
  const at::Tensor parameter = at::tensor({1.0, -2.0}, at::kDouble);
  ExponentialAverage average({{"p", parameter}}, {.decay = 0.75});
  EXPECT_EQ(average.next_decay(), 0);
  average.update();
  EXPECT_TRUE(at::equal(average.averages()[0].second, parameter)) << "the first update copies";
  parameter.copy_(at::tensor({5.0, 2.0}, at::kDouble));
  average.update();  // 1 + 0.25 (5 - 1), -2 + 0.25 (2 + 2)
  EXPECT_TRUE(at::equal(average.averages()[0].second, at::tensor({2.0, -1.0}, at::kDouble)));
  average.update();  // 2 + 0.25 (5 - 2), -1 + 0.25 (2 + 1)
  EXPECT_TRUE(at::equal(average.averages()[0].second, at::tensor({2.75, -0.25}, at::kDouble)));
  EXPECT_EQ(average.updates(), 3);
}

TEST(ExponentialAverage, WarmUpBoundsTheFirstDecays) {
  const at::Tensor parameter = at::zeros({1}, at::kDouble);
  ExponentialAverage average({{"p", parameter}}, {.decay = 0.5, .warm_up = true});
  average.update();
  std::vector<double> decays;
  double expected = 0;
  for (int n = 1; n <= 10; ++n) {
    const double decay = average.next_decay();
    decays.push_back(decay);
    parameter.fill_(n);
    average.update();
    expected += (1 - decay) * (n - expected);
    EXPECT_NEAR(average.averages()[0].second.item<double>(), expected, 1e-14) << n;
  }
  EXPECT_EQ(decays[0], 2.0 / 11);
  EXPECT_EQ(decays[6], 8.0 / 17);
  EXPECT_EQ(decays[7], 0.5) << "9 / 18, and the greatest";
  EXPECT_EQ(decays[9], 0.5);
}

TEST(ExponentialAverage, IsInTheModelForAWhile) {
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  const NamedTensors parameters = parameters_of(model);
  ExponentialAverage average(parameters, {.decay = 0.5});
  EXPECT_NE(message_of<InvalidArgument>([&] { (void)average.in_model(); }).find("before the first"),
            std::string::npos);
  average.update();
  // An optimizer that moves the parameters into memory of its own.
  optim::FusedSGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  std::vector<at::Tensor> trained, averaged;
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : parameters) {
      parameter.add_(step_of(parameter, 1));
      trained.push_back(parameter.detach().clone());
    }
  }
  average.update();
  for (const auto& [name, tensor] : average.averages()) averaged.push_back(tensor.clone());
  {
    const auto in_model = average.in_model();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(at::equal(model->parameters()[i], averaged[i]));
      EXPECT_FALSE(at::equal(averaged[i], trained[i]));
      EXPECT_TRUE(at::equal(average.training_parameters()[i].second, trained[i]));
    }
    EXPECT_THROW(average.update(), InvalidArgument);
    EXPECT_THROW((void)average.in_model(), InvalidArgument);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(model->parameters()[i], trained[i])) << "put back";
    EXPECT_TRUE(model->parameters()[i].requires_grad());
  }
  average.update();
}

// An oscillation that a rate too large keeps up is averaged out.
TEST(ExponentialAverage, IsBetterThanTheLastStepOfANoisyDescent) {
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  model->to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    model->weight.fill_(1);
  }
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1));
  ExponentialAverage average(parameters_of(model), {.decay = 0.9, .warm_up = true});
  const at::Tensor input = at::ones({1, 1}, at::kDouble);
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    model(input).square().sum().backward();  // w goes to -w
    optimizer.step();
    average.update();
  }
  EXPECT_EQ(std::abs(model->weight.item<double>()), 1);
  {
    const auto in_model = average.in_model();
    EXPECT_LT(std::abs(model->weight.item<double>()), 0.1);
  }
  EXPECT_EQ(std::abs(model->weight.item<double>()), 1);
}

TEST(ExponentialAverage, ATensorUnderTwoNamesCountsOnce) {
  const at::Tensor tied = at::ones({2}), other = at::ones({3});
  ExponentialAverage average({{"a", tied}, {"b", other}, {"c", tied}}, {.decay = 0.5});
  average.update();
  tied.fill_(3);
  average.update();
  EXPECT_EQ(average.averages().size(), 2u);
  {
    const auto in_model = average.in_model();
    EXPECT_TRUE(at::equal(tied, at::full({2}, 2.0f)));
  }
  EXPECT_TRUE(at::equal(tied, at::full({2}, 3.0f)));
}

TEST(ExponentialAverage, ShortFloatsAreAveragedInLongerOnes) {
  const at::Tensor parameter = at::ones({4}, at::kBFloat16);
  ExponentialAverage average({{"p", parameter}}, {.decay = 0.999});
  average.update();
  parameter.fill_(2);
  for (int i = 0; i < 100; ++i) average.update();
  const at::Tensor found = average.averages()[0].second;
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  // In bfloat16 1 + 0.001 would be 1 for ever.
  EXPECT_NEAR(found[0].item<double>(), 2 - std::pow(0.999, 100), 1e-5);
  const auto in_model = average.in_model();
  EXPECT_TRUE(at::equal(parameter, found.to(at::kBFloat16)));
}

// A model with statistics and a count of batches, as BatchNorm has them.
torch::nn::BatchNorm1d statistics_of(int64_t step) {
  torch::nn::BatchNorm1d norm(3);
  const at::NoGradGuard no_grad;
  norm->running_mean.fill_(step);
  norm->running_var.fill_(10 * step);
  norm->num_batches_tracked.fill_(step);
  return norm;
}

TEST(ExponentialAverage, BuffersAreThoseOfTheLastStepOrAveraged) {
  for (const bool averages : {false, true}) {
    torch::nn::BatchNorm1d norm = statistics_of(1);
    ExponentialAverage average(norm, {.decay = 0.75, .averages_buffers = averages});
    EXPECT_EQ(average.bytes(), (averages ? 4 : 2) * 3 * 4 + (averages ? 8 : 0));
    average.update();
    const torch::nn::BatchNorm1d second = statistics_of(5);
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < norm->buffers().size(); ++i)
        norm->buffers()[i].copy_(second->buffers()[i]);
    }
    average.update();
    {
      const auto in_model = average.in_model();
      EXPECT_EQ(norm->running_mean[0].item<float>(), averages ? 2 : 5);   // 1 + 0.25 (5 - 1)
      EXPECT_EQ(norm->running_var[2].item<float>(), averages ? 20 : 50);  // 10 + 0.25 (50 - 10)
      EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 5) << "a count is no average";
    }
    EXPECT_EQ(norm->running_mean[0].item<float>(), 5) << "put back";
    EXPECT_EQ(norm->running_var[2].item<float>(), 50);
    EXPECT_EQ(average.averages().size(), averages ? 5u : 2u);
    int64_t bytes = 0;
    for (const auto& [name, tensor] : average.averages())
      bytes += static_cast<int64_t>(tensor.nbytes());
    EXPECT_EQ(average.bytes(), bytes) << "as before the first update";
  }
}

TEST(ExponentialAverage, ContinuesFromAState) {
  const TestDirectory dir;
  const at::Tensor parameter = at::linspace(0, 1, 6).view({2, 3}), twin = parameter.clone();
  const optim::ExponentialAverageOptions options{.decay = 0.9, .warm_up = true};
  ExponentialAverage whole({{"w", parameter}}, options);
  for (int step = 0; step < 4; ++step) {
    parameter.add_(step_of(parameter, step));
    whole.update();
  }
  const Safetensors state = whole.state();
  write_safetensors(dir / "ema", state.tensors, state.metadata);
  ExponentialAverage later({{"w", twin}}, options);
  later.load(read_safetensors(dir / "ema"), "ema");
  twin.copy_(parameter);
  EXPECT_EQ(later.updates(), 4);
  for (int step = 4; step < 8; ++step) {
    for (const at::Tensor& each : {parameter, twin}) each.add_(step_of(each, step));
    whole.update();
    later.update();
  }
  EXPECT_TRUE(at::equal(later.averages()[0].second, whole.averages()[0].second));
}

TEST(ExponentialAverage, RefusesAStateThatDoesNotFit) {
  const auto refused = [](const Safetensors& state) {
    ExponentialAverage average({{"w", at::zeros({2})}, {"v", at::zeros({3})}});
    const std::string message =
        message_of<CheckpointError>([&] { average.load(state, "x/ema.safetensors"); });
    EXPECT_EQ(average.updates(), 0);
    return message;
  };
  const Metadata one{{"ema_updates", "1"}};
  EXPECT_EQ(refused({.tensors = {{"w", at::zeros({2})}, {"v", at::zeros({3})}}}),
            "x/ema.safetensors: is no state of an ExponentialAverage");
  EXPECT_EQ(refused({.tensors = {{"w", at::zeros({2})}}, .metadata = one}),
            "x/ema.safetensors: has no v");
  EXPECT_EQ(refused({.tensors = {{"w", at::zeros({2})}, {"v", at::zeros({4})}}, .metadata = one}),
            "x/ema.safetensors: v has another shape or type than the model");
  EXPECT_EQ(refused({.tensors = {{"w", at::zeros({2})}, {"v", at::zeros({3})}, {"u", at::zeros(1)}},
                     .metadata = one}),
            "x/ema.safetensors: has u, and the model has not");
  for (const double decay : {1.0, -0.1, std::nan("")})
    EXPECT_THROW(ExponentialAverage({}, {.decay = decay}), InvalidArgument) << decay;
}

}  // namespace
}  // namespace lockstep::inline v0::exponential_average_test
