// The fused optimizers compared with torch::optim's, from equal parameters and gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/internal/test_parameters.h"
#include "lockstep/optim/learning_rate.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::inline v0::optim::fused_test {

using ::testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

// These tensors are too small to benefit from threads, and on busy machines threads wait.
class OneThread final : public ::testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
const auto* const kOneThread = ::testing::AddGlobalTestEnvironment(new OneThread);

template <typename Options>
std::vector<OptimizerParamGroup> two_groups(const std::vector<at::Tensor>& parameters,
                                            const Options& options) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 5),
                      std::make_unique<Options>(options));
  auto second = std::make_unique<Options>(options);
  second->weight_decay(0.1).lr(options.lr() / 2);
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 5, parameters.end()),
                      std::move(second));
  return groups;
}

// The distance between the two after `steps`; every third step, two parameters have no gradient.
template <typename Fused, typename Reference, typename Options>
double distance(const Options& options, at::ScalarType dtype, FusedOptions fused, int steps = 100) {
  const auto ours = test::parameters(dtype), theirs = test::parameters(dtype);
  Fused optimizer(two_groups(ours, options), options, fused);
  Reference reference(two_groups(theirs, options), options);
  const Schedule schedule = cosine({.total_steps = steps, .warmup = {.steps = 5, .from = 0.1}});
  for (int step = 0; step < steps; ++step) {
    auto gradients = test::gradients(theirs, step);
    if (step % 3 == 1 && !fused.flat_gradients) {
      gradients[1].reset();
      gradients[6].reset();
    }
    test::give_gradients(ours, gradients);
    test::give_gradients(theirs, gradients);
    for (torch::optim::Optimizer* each :
         std::initializer_list<torch::optim::Optimizer*>{&optimizer, &reference}) {
      for (auto& group : each->param_groups())
        group.options().set_lr(options.lr() * schedule.factor(step));
    }
    optimizer.step();
    reference.step();
    if (fused.flat_gradients) optimizer.zero_grad();
  }
  EXPECT_GT(test::relative_distance(theirs, test::parameters(dtype)), 1e-3) << "nothing has moved";
  return test::relative_distance(ours, theirs);
}

template <typename Fused, typename Reference, typename Options>
void expect_equal(const char* what, const Options& options) {
  for (const bool flat : {false, true}) {
    SCOPED_TRACE(flat ? "flat gradients" : "separate gradients");
    const double in_double = distance<Fused, Reference>(options, at::kDouble, {flat});
    const double in_float = distance<Fused, Reference>(options, at::kFloat, {flat});
    EXPECT_LE(in_double, 1e-15) << what;
    EXPECT_LE(in_float, 1e-7) << what;
    std::printf("%-28s %-9s float64 %.1e  float32 %.1e\n", what, flat ? "flat" : "separate",
                in_double, in_float);
  }
}

TEST(FusedAdamW, IsTorchs) {
  expect_equal<FusedAdamW, torch::optim::AdamW>("AdamW", AdamWOptions(1e-2));
  expect_equal<FusedAdamW, torch::optim::AdamW>("AdamW without decay",
                                                AdamWOptions(1e-2).weight_decay(0));
  expect_equal<FusedAdamW, torch::optim::AdamW>("AdamW amsgrad", AdamWOptions(1e-2).amsgrad(true));
}

TEST(FusedAdam, IsTorchs) {
  expect_equal<FusedAdam, torch::optim::Adam>("Adam", AdamOptions(1e-2));
  expect_equal<FusedAdam, torch::optim::Adam>(
      "Adam decay amsgrad", AdamOptions(1e-2).weight_decay(0.05).amsgrad(true).betas({0.8, 0.95}));
}

TEST(FusedSGD, IsTorchs) {
  expect_equal<FusedSGD, torch::optim::SGD>("SGD", SGDOptions(0.01));
  expect_equal<FusedSGD, torch::optim::SGD>("SGD decay", SGDOptions(0.01).weight_decay(0.01));
  expect_equal<FusedSGD, torch::optim::SGD>("SGD momentum", SGDOptions(0.01).momentum(0.9));
  expect_equal<FusedSGD, torch::optim::SGD>(
      "SGD momentum dampening", SGDOptions(0.01).momentum(0.9).dampening(0.3).weight_decay(0.01));
  expect_equal<FusedSGD, torch::optim::SGD>("SGD nesterov",
                                            SGDOptions(0.01).momentum(0.9).nesterov(true));
}

TEST(FusedOptimizer, LayoutDoesNotChangeTheBits) {
  const auto separate = test::parameters(at::kFloat), together = test::parameters(at::kFloat);
  FusedAdamW one(separate, AdamWOptions(1e-2));
  FusedAdamW other(together, AdamWOptions(1e-2), {.flat_gradients = true});
  for (int step = 0; step < 10; ++step) {
    const auto gradients = test::gradients(separate, step);
    test::give_gradients(separate, gradients);
    test::give_gradients(together, gradients);
    const StepResult a = one.step({.max_norm = 5.0}), b = other.step({.max_norm = 5.0});
    EXPECT_EQ(*a.grad_norm, *b.grad_norm);
  }
  for (size_t i = 0; i < separate.size(); ++i) EXPECT_TRUE(separate[i].equal(together[i])) << i;
}

TEST(FusedOptimizer, TrainsAModelThroughTorchsInterface) {
  torch::manual_seed(3);
  torch::nn::Sequential ours(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Linear(9, 2));
  ours->to(at::kDouble);
  auto theirs = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(ours->clone());
  FusedAdamW fused(ours->parameters(), AdamWOptions(0.01));
  torch::optim::AdamW reference(theirs->parameters(), AdamWOptions(0.01));
  torch::optim::Optimizer& optimizer = fused;
  const auto x = torch::randn({20, 6}, at::kDouble), y = torch::randn({20, 2}, at::kDouble);
  double first = 0, last = 0;
  for (int step = 0; step < 50; ++step) {
    const auto loss = optimizer.step([&] {
      optimizer.zero_grad();
      auto l = torch::mse_loss(ours->forward(x), y);
      l.backward();
      return l;
    });
    reference.zero_grad();
    torch::mse_loss(theirs->forward(x), y).backward();
    reference.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first);
  EXPECT_LT(test::relative_distance(ours->parameters(), theirs->parameters()), 1e-12);
}

TEST(FusedOptimizer, FlatGradientsAreKeptByBackward) {
  auto parameter = torch::ones({3}).set_requires_grad(true);
  FusedSGD optimizer({parameter}, SGDOptions(1), {.flat_gradients = true});
  const void* where = parameter.grad().const_data_ptr();
  (parameter * 2).sum().backward();
  EXPECT_EQ(parameter.grad().const_data_ptr(), where);
  optimizer.step();
  EXPECT_TRUE(parameter.equal(torch::full({3}, -1.0)));
  optimizer.zero_grad();
  EXPECT_TRUE(parameter.grad().equal(torch::zeros({3})));
  static_cast<torch::optim::Optimizer&>(optimizer).zero_grad();  // drops them
  (parameter * 2).sum().backward();
  optimizer.step();
  EXPECT_TRUE(parameter.equal(torch::full({3}, -3.0)));
  optimizer.zero_grad();
  EXPECT_EQ(parameter.grad().const_data_ptr(), where);
}

TEST(FusedOptimizer, SeveralDtypesAndChannelsLast) {
  const auto image = torch::randn({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  std::vector<at::Tensor> ours = {image.clone().set_requires_grad(true),
                                  torch::ones({5}, at::kDouble).set_requires_grad(true)};
  std::vector<at::Tensor> theirs = {image.clone().set_requires_grad(true),
                                    torch::ones({5}, at::kDouble).set_requires_grad(true)};
  FusedSGD optimizer(ours, SGDOptions(0.1));
  torch::optim::SGD reference(theirs, SGDOptions(0.1));
  EXPECT_TRUE(ours[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  for (int step = 0; step < 3; ++step) {
    const auto gradients = test::gradients(theirs, step);  // contiguous: another layout
    for (size_t i = 0; i < ours.size(); ++i) {
      ours[i].mutable_grad() = gradients[i].clone();
      theirs[i].mutable_grad() = gradients[i].clone();
    }
    optimizer.step();
    reference.step();
  }
  EXPECT_LT(test::relative_distance(ours, theirs), 1e-7);
}

TEST(FusedOptimizer, GroupsMayBeAdded) {
  auto first = torch::ones({3}).set_requires_grad(true);
  auto second = torch::ones({2}).set_requires_grad(true);
  FusedSGD optimizer({first}, SGDOptions(1));
  optimizer.add_param_group(OptimizerParamGroup({second}));
  first.mutable_grad() = torch::ones({3});
  second.mutable_grad() = torch::ones({2});
  set_learning_rate(optimizer, 0.5);
  optimizer.step();
  EXPECT_TRUE(first.equal(torch::full({3}, 0.5)));
  EXPECT_TRUE(second.equal(torch::full({2}, 0.5)));
  EXPECT_THROW(set_learning_rate(optimizer, -1), InvalidArgument);
}

TEST(FusedOptimizer, AStepIsAChangeToAutograd) {
  auto parameter = torch::ones({3}).set_requires_grad(true);
  FusedSGD optimizer({parameter}, SGDOptions(1));
  const auto loss = (parameter * parameter).sum();
  parameter.mutable_grad() = torch::ones({3});
  optimizer.step();
  EXPECT_THROW(loss.backward(), c10::Error);  // the graph used the values before the step
}

TEST(FusedOptimizer, SaysWhatItCannotTake) {
  auto parameter = torch::ones({4}).set_requires_grad(true);
  auto part = parameter.detach().narrow(0, 1, 2).set_requires_grad(true);
  EXPECT_THAT(message_of<InvalidArgument>([&] { FusedSGD({parameter, part}, SGDOptions(1)); }),
              HasSubstr("parameter 0 of group 0 and parameter 1 of group 0 share memory"));
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { FusedSGD({torch::ones({2}, at::kLong)}, SGDOptions(1)); }),
      HasSubstr("not floating-point"));

  FusedSGD optimizer({parameter}, SGDOptions(1));
  parameter.mutable_grad() = torch::ones({4}).to_sparse();
  EXPECT_THAT(message_of<InvalidArgument>([&] { optimizer.step(); }), HasSubstr("is sparse"));
  parameter.mutable_grad() = torch::ones({4});
  EXPECT_THAT(message_of<InvalidArgument>([&] { optimizer.step({.max_norm = 0.0}); }),
              HasSubstr("max_norm"));
  const FusedSGD thief({parameter}, SGDOptions(1));
  EXPECT_THAT(message_of<InvalidArgument>([&] { optimizer.step(); }), HasSubstr("has been moved"));
}

}  // namespace lockstep::inline v0::optim::fused_test
