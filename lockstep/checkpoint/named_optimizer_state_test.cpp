#include "lockstep/checkpoint/named_optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::named_optimizer_state_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

torch::nn::Sequential make_net() {
  torch::manual_seed(2);
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
}

// Weights decay and biases do not; `turned`: the reverse order of the groups, and of the layers in
// each.
std::unique_ptr<AdamW> make_optimizer(torch::nn::Sequential& net, bool turned, double lr = 0.1) {
  std::vector<at::Tensor> decayed, others;
  for (const auto& item : net->named_parameters())
    (item.key().ends_with("weight") ? decayed : others).push_back(item.value());
  if (turned) {
    std::reverse(decayed.begin(), decayed.end());
    std::reverse(others.begin(), others.end());
  }
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(decayed, std::make_unique<AdamWOptions>(AdamWOptions(lr).weight_decay(0.2)));
  groups.emplace_back(others, std::make_unique<AdamWOptions>(AdamWOptions(lr).weight_decay(0)));
  if (turned) std::swap(groups[0], groups[1]);
  return std::make_unique<AdamW>(groups, AdamWOptions(lr));
}

void step(torch::nn::Sequential& net, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  net->forward(torch::ones({2, 3})).square().sum().backward();
  optimizer.step();
}

SlicedTensors named_state(torch::nn::Sequential& net, const torch::optim::Optimizer& optimizer) {
  return by_name(optimizer_state(optimizer), *parameter_names(*net, optimizer));
}

TEST(NamedOptimizerState, HasTheNamesOfTheModel) {
  auto net = make_net();
  const auto optimizer = make_optimizer(net, false);
  EXPECT_EQ(*parameter_names(*net, *optimizer),
            (ParameterNames{{"0.weight", "1.weight"}, {"0.bias", "1.bias"}}));
  step(net, *optimizer);
  const SlicedTensors state = named_state(net, *optimizer);
  EXPECT_EQ(state.tensors.size(), 12u);
  EXPECT_TRUE(is_by_name(state.metadata));
  const Safetensors plain = optimizer_state(*optimizer);
  EXPECT_FALSE(is_by_name(plain.metadata));
  EXPECT_TRUE(state.find("1.weight.exp_avg")->whole().equal(*plain.find("1.exp_avg")));
  EXPECT_EQ(state.find("1.weight.exp_avg")->whole().const_data_ptr(),
            plain.find("1.exp_avg")->const_data_ptr())
      << "nothing is copied";
  EXPECT_TRUE(state.find("0.bias.step")->whole().equal(*plain.find("2.step")));
  const auto group = nlohmann::json::parse(state.metadata.at("group.1"));
  EXPECT_EQ(group["parameters"], (std::vector<std::string>{"0.bias", "1.bias"}));
  EXPECT_EQ(group["weight_decay"], 0);
  EXPECT_EQ(state.metadata.at("optimizer"), "AdamW");
}

// The next steps equal those of the optimizer that wrote it, each group with its options.
TEST(NamedOptimizerState, GoesToAnOptimizerWithAnotherOrder) {
  auto net = make_net(), other = make_net();
  const auto optimizer = make_optimizer(net, false);
  step(net, *optimizer);
  step(net, *optimizer);
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters())
      other->named_parameters()[item.key()].copy_(item.value());
  }
  const auto turned = make_optimizer(other, true, 7.0);
  const ParameterNames names = *parameter_names(*other, *turned);
  EXPECT_EQ(names, (ParameterNames{{"1.bias", "0.bias"}, {"1.weight", "0.weight"}}));
  const SlicedTensors state = by_position(named_state(net, *optimizer), names, "c");
  EXPECT_FALSE(is_by_name(state.metadata));
  set_optimizer_state(*turned, state.whole(), "c");
  step(net, *optimizer);
  step(other, *turned);
  for (const auto& item : net->named_parameters())
    EXPECT_TRUE(other->named_parameters()[item.key()].equal(item.value())) << item.key();
  EXPECT_EQ(static_cast<AdamWOptions&>(turned->param_groups()[1].options()).weight_decay(), 0.2);
  EXPECT_EQ(static_cast<AdamWOptions&>(turned->param_groups()[1].options()).lr(), 0.1);
}

// A rank's part: slices stay slices, and missing ones stay missing.
TEST(NamedOptimizerState, PartsKeepTheirPlaces) {
  const ParameterNames names{{"a.weight", "b"}};
  SlicedTensors part;
  part.tensors["1.exp_avg"] = slice_of({10}, {1}, 4, at::ones({3}));
  const SlicedTensors named = by_name(part, names);
  ASSERT_NE(named.find("b.exp_avg"), nullptr);
  EXPECT_EQ(named.find("b.exp_avg")->slices[0].begin, 4);
  EXPECT_TRUE(by_name({}, names).tensors.empty());
  part.tensors["2.exp_avg"] = part.tensors["1.exp_avg"];
  EXPECT_THROW(by_name(part, names), InvalidArgument);
}

TEST(NamedOptimizerState, AStateByPositionStaysOne) {
  auto net = make_net();
  const auto optimizer = make_optimizer(net, false);
  step(net, *optimizer);
  const SlicedTensors plain = optimizer_state(*optimizer);
  const SlicedTensors same = by_position(plain, {{"any"}}, "c");
  EXPECT_EQ(same.metadata, plain.metadata);
  ASSERT_EQ(same.tensors.size(), plain.tensors.size());
  EXPECT_NE(same.find("3.exp_avg"), nullptr);
}

// torch's optimizers take model->parameters(), which contains a tied parameter twice.
TEST(NamedOptimizerState, AParameterTakenTwiceLeavesPositions) {
  struct Tied : torch::nn::Module {
    Tied() : a(register_parameter("a", torch::ones({2}))) { register_parameter("b", a); }
    at::Tensor a;
  } model;
  const std::vector<at::Tensor> twice{model.a, model.a};
  EXPECT_FALSE(parameter_names(model, AdamW(twice, AdamWOptions(1e-3))));
  EXPECT_EQ(parameter_names(model, AdamW({twice[0]}, AdamWOptions(1e-3))), (ParameterNames{{"a"}}));
}

TEST(NamedOptimizerState, WhatDoesNotFitIsNamed) {
  auto net = make_net();
  const auto optimizer = make_optimizer(net, false);
  step(net, *optimizer);
  const SlicedTensors state = named_state(net, *optimizer);
  const auto refusal = [&](const ParameterNames& names) {
    return message_of<CheckpointError>([&] { by_position(state, names, "dir/optimizer"); });
  };
  EXPECT_THAT(refusal({{"0.weight", "head.weight"}, {"0.bias", "1.bias"}}),
              AllOf(StartsWith("dir/optimizer: "),
                    HasSubstr("no parameter 'head.weight', which the optimizer has"),
                    Not(HasSubstr("\n"))));
  EXPECT_THAT(refusal({{"0.weight", "x", "y"}, {"z"}}), HasSubstr("no parameter 'x' and 2 more"));
  EXPECT_THAT(refusal({{"0.weight", "1.weight"}, {"0.bias"}}),
              HasSubstr("the parameter '1.bias', which the optimizer lacks"));
  EXPECT_THAT(refusal({{"0.weight", "1.weight", "0.bias", "1.bias"}}),
              HasSubstr("'0.weight' and '0.bias' in two groups"));
  EXPECT_THAT(refusal({{"0.weight"}, {"1.weight"}, {"0.bias", "1.bias"}}),
              HasSubstr("'0.weight' and '1.weight' in one group"));
  EXPECT_THAT(refusal({{"0.weight", "1.weight"}, {"0.bias", "1.bias"}, {}}),
              HasSubstr("another number of parameter groups"));
  SlicedTensors twice = state;
  twice.metadata["group.0"] = R"({"parameters": ["a", "a"]})";
  EXPECT_THAT(message_of<CheckpointError>([&] { by_position(twice, {{"a"}}, "c"); }),
              HasSubstr("lists the parameter 'a' twice"));
  twice.metadata["group.0"] = R"({"parameters": ["a", 3]})";
  EXPECT_THAT(message_of<CheckpointError>([&] { by_position(twice, {{"a"}}, "c"); }),
              HasSubstr("the options of parameter group 0 cannot be read"));
}

// The names in the state cannot be known without the model.
TEST(NamedOptimizerState, APlainReaderSaysWhatItLacks) {
  const TestDirectory dir;
  auto net = make_net(), other = make_net();
  const auto optimizer = make_optimizer(net, false), turned = make_optimizer(other, true);
  step(net, *optimizer);
  const Safetensors named = named_state(net, *optimizer).whole();
  write_safetensors(dir / "o.safetensors", named.tensors, named.metadata);
  EXPECT_THAT(message_of<CheckpointError>([&] { load_optimizer(*turned, dir / "o.safetensors"); }),
              HasSubstr("load_optimizer(optimizer, model, path)"));
  load_optimizer(*turned, *other, dir / "o.safetensors");
  EXPECT_TRUE(named_state(other, *turned)
                  .find("0.weight.exp_avg")
                  ->whole()
                  .equal(*named.find("0.weight.exp_avg")));
  // A state by position is read with or without a model.
  save_optimizer(*optimizer, dir / "plain.safetensors");
  load_optimizer(*optimizer, *net, dir / "plain.safetensors");
  // An optimizer of other tensors than the model's stores only positions.
  const at::Tensor stranger = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD sgd({stranger}, 0.1);
  EXPECT_FALSE(parameter_names(*net, sgd).has_value());
  EXPECT_THAT(
      message_of<CheckpointError>([&] { load_optimizer(sgd, *net, dir / "o.safetensors"); }),
      HasSubstr("by the names of"));
}

}  // namespace
}  // namespace lockstep::inline v0::named_optimizer_state_test
