#include "lockstep/optim/decay_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::inline v0::optim::decay_groups_test {

using ::testing::ElementsAre;

struct RmsNormImpl : torch::nn::Module {
  RmsNormImpl() { gain = register_parameter("gain", torch::ones({4})); }
  at::Tensor gain;
};
TORCH_MODULE(RmsNorm);

struct NormalizingFlowImpl : torch::nn::Module {
  NormalizingFlowImpl() { shift = register_parameter("shift", torch::ones({4})); }
  at::Tensor shift;
};
TORCH_MODULE(NormalizingFlow);

// Its weight is the embedding's.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& weight) {
    register_parameter("weight", weight);
    register_parameter("bias", torch::ones({6}));
  }
};

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    embeddings = register_module("embeddings", torch::nn::Embedding(6, 4));
    conv = register_module("conv", torch::nn::Conv2d(1, 2, 3));
    bn = register_module("bn", torch::nn::BatchNorm2d(2));
    attention = register_module("attention", torch::nn::MultiheadAttention(4, 2));
    ln = register_module("ln", torch::nn::LayerNorm(std::vector<int64_t>{4}));
    rms = register_module("rms", RmsNorm());
    flow = register_module("flow", NormalizingFlow());
    frozen = register_module("frozen", torch::nn::Linear(2, 2));
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    head = register_module("head", std::make_shared<HeadImpl>(embeddings->weight));
  }
  torch::nn::Embedding embeddings = nullptr;
  torch::nn::Conv2d conv = nullptr;
  torch::nn::BatchNorm2d bn = nullptr;
  torch::nn::MultiheadAttention attention = nullptr;
  torch::nn::LayerNorm ln = nullptr;
  RmsNorm rms = nullptr;
  NormalizingFlow flow = nullptr;
  torch::nn::Linear frozen = nullptr;
  std::shared_ptr<HeadImpl> head;
};
TORCH_MODULE(Model);

std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> result;
  for (const auto& entry : tensors) result.push_back(entry.first);
  return result;
}

TEST(DecayGroups, SpareBiasesAndNorms) {
  Model model;
  const DecayGroups groups = split_by_decay(*model);
  EXPECT_THAT(names(groups.decay),
              ElementsAre("embeddings.weight", "conv.weight", "attention.in_proj_weight",
                          "attention.out_proj.weight", "flow.shift"));
  EXPECT_THAT(
      names(groups.no_decay),
      ElementsAre("conv.bias", "bn.weight", "bn.bias", "attention.in_proj_bias",
                  "attention.out_proj.bias", "ln.weight", "ln.bias", "rms.gain", "head.bias"));
}

TEST(DecayGroups, FollowTheRule) {
  Model model;
  const DecayGroups by_name =
      split_by_decay(*model, {.biases = false, .norms = false, .names = {"embeddings", "flow."}});
  EXPECT_THAT(names(by_name.no_decay), ElementsAre("embeddings.weight", "flow.shift"));
  const DecayGroups by_shape =
      split_by_decay(*model, {.biases = false, .norms = false, .one_dimensional = true});
  EXPECT_THAT(names(by_shape.decay),
              ElementsAre("embeddings.weight", "conv.weight", "attention.in_proj_weight",
                          "attention.out_proj.weight"));
}

TEST(DecayGroups, GoIntoAnOptimizer) {
  Model model;
  const auto options = torch::optim::AdamWOptions(0.5).weight_decay(0.25);
  FusedAdamW optimizer(decay_groups(*model, options), options);
  ASSERT_EQ(optimizer.param_groups().size(), 2U);
  for (const size_t i : {0U, 1U}) {
    const auto& group =
        static_cast<const torch::optim::AdamWOptions&>(optimizer.param_groups()[i].options());
    EXPECT_EQ(group.weight_decay(), i == 0 ? 0.25 : 0.0);
    EXPECT_EQ(group.lr(), 0.5);
  }
  for (auto& parameter : model->parameters())
    parameter.mutable_grad() = torch::zeros_like(parameter);
  const auto bias = model->conv->bias.detach().clone(),
             weight = model->conv->weight.detach().clone();
  optimizer.step();  // with zero gradients, only decay changes parameters
  EXPECT_TRUE(model->conv->bias.equal(bias));
  EXPECT_TRUE(model->conv->weight.equal(weight * 0.875));
}

// libtorch would treat the 0, which is also the class's default, as not set.
TEST(DecayGroups, AWeightDecayOfZeroIsKept) {
  const auto decays = [](const torch::optim::Optimizer& optimizer, auto options) {
    std::vector<double> values;
    for (const auto& group : optimizer.param_groups())
      values.push_back(static_cast<const decltype(options)&>(group.options()).weight_decay());
    return values;
  };
  Model model;
  const std::vector<double> expected{0.25, 0.0};
  const auto sgd = torch::optim::SGDOptions(0.5).weight_decay(0.25);
  EXPECT_EQ(decays(FusedSGD(decay_groups(*model, sgd), sgd), sgd), expected);
  const auto adam = torch::optim::AdamOptions(0.5).weight_decay(0.25);
  EXPECT_EQ(decays(FusedAdam(decay_groups(*model, adam), adam), adam), expected);
}

TEST(DecayGroups, LeaveAnEmptyGroupOut) {
  torch::nn::Linear linear(torch::nn::LinearOptions(2, 2).bias(false));
  EXPECT_EQ(decay_groups(*linear, torch::optim::SGDOptions(0.1)).size(), 1U);
}

}  // namespace lockstep::inline v0::optim::decay_groups_test
