#include "lockstep/checkpoint/optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::optimizer_state_test {

using ::testing::HasSubstr;

struct Training {
  std::vector<torch::Tensor> params;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  void step(int count) {
    for (int i = 0; i < count; ++i) {
      optimizer->zero_grad();
      auto loss = torch::zeros({});
      for (const auto& p : params) loss = loss + (p * p * p).sum();
      loss.backward();
      optimizer->step();
    }
  }
};

template <class Optimizer, class Options>
Training make(Options options, double lr_of_second_group) {
  Training run;
  for (const int n : {3, 1, 5})
    run.params.push_back((torch::arange(n) / 7.0 + 0.1).set_requires_grad(true));
  auto second = std::make_unique<Options>(options);
  second->lr(lr_of_second_group);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{run.params[0], run.params[1]});
  groups.emplace_back(std::vector<torch::Tensor>{run.params[2]}, std::move(second));
  run.optimizer = std::make_unique<Optimizer>(groups, options);
  return run;
}

// Three steps, save, two steps; then from the file into a new optimizer, two steps: the same bits.
template <class Optimizer, class Options>
void goes_on_bit_for_bit(Options options) {
  const TestDirectory dir;
  Training whole = make<Optimizer>(options, 0.02);
  whole.step(3);
  save_optimizer(*whole.optimizer, dir / "o.safetensors");
  Training resumed = make<Optimizer>(options, 0.5);  // the file's lr is used
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < whole.params.size(); ++i) resumed.params[i].copy_(whole.params[i]);
  }
  load_optimizer(*resumed.optimizer, dir / "o.safetensors");
  whole.step(2);
  resumed.step(2);
  for (size_t i = 0; i < whole.params.size(); ++i)
    EXPECT_TRUE(torch::equal(whole.params[i], resumed.params[i]));
}

TEST(OptimizerState, Sgd) {
  goes_on_bit_for_bit<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.5));
}
TEST(OptimizerState, SgdWithoutMomentumHasNoState) {
  goes_on_bit_for_bit<torch::optim::SGD>(torch::optim::SGDOptions(0.01));
}
TEST(OptimizerState, Adam) {
  goes_on_bit_for_bit<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
}
TEST(OptimizerState, AdamW) {
  goes_on_bit_for_bit<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
}

TEST(OptimizerState, RmsProp) {
  goes_on_bit_for_bit<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  goes_on_bit_for_bit<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01));
}
TEST(OptimizerState, Adagrad) {
  goes_on_bit_for_bit<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01).lr_decay(0.1));
}

TEST(OptimizerState, OthersAreRefusedAndTheOptimizerIsUnchanged) {
  const torch::optim::SGDOptions sgd = torch::optim::SGDOptions(0.01).momentum(0.5);
  Training a = make<torch::optim::SGD>(sgd, 0.01);
  a.step(1);
  Safetensors state = optimizer_state(*a.optimizer);
  const auto error_of = [](torch::optim::Optimizer& optimizer,
                           const Safetensors& from) -> std::string {
    try {
      set_optimizer_state(optimizer, from, "here");
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  };
  Training adam = make<torch::optim::Adam>(torch::optim::AdamOptions(), 0.01);
  EXPECT_THAT(error_of(*adam.optimizer, state),
              HasSubstr("here: was saved from SGD, but the optimizer is Adam"));
  torch::optim::SGD other({torch::ones({3}).set_requires_grad(true)}, sgd);
  EXPECT_THAT(error_of(other, state), HasSubstr("another number of parameter groups"));
  Safetensors bad = state;
  bad.tensors[0].second = torch::ones({99});
  Training b = make<torch::optim::SGD>(sgd, 0.01);
  EXPECT_THAT(error_of(*b.optimizer, bad), HasSubstr("0.momentum_buffer"));
  bad = state;
  bad.tensors.emplace_back("7.momentum_buffer", torch::ones({1}));
  EXPECT_THAT(error_of(*b.optimizer, bad), HasSubstr("7.momentum_buffer belongs to no parameter"));
  bad = state;
  bad.metadata["group.0"] = "{";
  EXPECT_THAT(error_of(*b.optimizer, bad), HasSubstr("cannot be read"));
  EXPECT_TRUE(b.optimizer->state().empty());
}

TEST(RngState, ComesBack) {
  torch::manual_seed(3);
  torch::rand({5});
  const auto state = cpu_rng_state();
  const auto next = torch::rand({5});
  set_cpu_rng_state(state, "here");
  EXPECT_TRUE(torch::equal(torch::rand({5}), next));
  EXPECT_THROW(set_cpu_rng_state(torch::ones({3}, torch::kByte), "here"), CheckpointError);
}

}  // namespace lockstep::inline v0::optimizer_state_test
