#include "lockstep/checkpoint/module_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/named_optimizer_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/flat/tensor_model.h"

namespace lockstep::inline v0::module_state_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct SmallImpl : torch::nn::Module {
  explicit SmallImpl(int64_t width = 3) {
    linear = register_module("linear", torch::nn::Linear(2, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Small);

TEST(ModuleState, ComesBackWithBuffersAndMetadata) {
  const TestDirectory dir;
  Small a, b;
  a->norm->running_mean.fill_(7);
  save(a, dir / "m.safetensors", {{"epoch", "3"}});
  EXPECT_EQ(load(b, dir / "m.safetensors", torch::kCPU).at("epoch"), "3");
  for (const auto& item : a->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), b->named_parameters()[item.key()]));
  for (const auto& item : a->named_buffers())
    EXPECT_TRUE(torch::equal(item.value(), b->named_buffers()[item.key()]));
  EXPECT_TRUE(b->linear->weight.requires_grad());
  EXPECT_TRUE(b->linear->weight.is_leaf());
}

TEST(ModuleState, NamesEqualPythons) {
  const TestDirectory dir;
  Small a;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : module_state(*a)) names.push_back(name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "linear.weight", "linear.bias", "norm.weight", "norm.bias",
                         "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
}

// The same model as TorchScript.
torch::jit::Module small_script() {
  torch::jit::Module linear("Linear"), norm("Norm"), small("Small");
  linear.register_parameter("weight", torch::ones({3, 2}).set_requires_grad(true), false);
  linear.register_parameter("bias", torch::ones({3}).set_requires_grad(true), false);
  norm.register_parameter("weight", torch::ones({3}).set_requires_grad(true), false);
  norm.register_parameter("bias", torch::ones({3}).set_requires_grad(true), false);
  norm.register_buffer("running_mean", torch::zeros({3}));
  norm.register_buffer("running_var", torch::ones({3}));
  norm.register_buffer("num_batches_tracked", torch::tensor(0));
  small.register_module("linear", linear);
  small.register_module("norm", norm);
  return small;
}

void expect_same(const NamedTensors& a, const NamedTensors& b) {
  const std::map<std::string, at::Tensor> left(a.begin(), a.end()), right(b.begin(), b.end());
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, tensor] : left) {
    ASSERT_TRUE(right.contains(name)) << name;
    EXPECT_TRUE(torch::equal(tensor, right.at(name))) << name;
  }
}

// One kind of model writes what another reads.
TEST(ModuleState, ModelsOfEveryKindHaveOneFile) {
  const TestDirectory dir;
  Small module;
  module->norm->running_mean.fill_(7);
  torch::jit::Module script = small_script();
  save(module, dir / "module.safetensors", {{"from", "C++"}});
  EXPECT_EQ(load(script, dir / "module.safetensors", torch::kCPU).at("from"), "C++");
  expect_same(state_of(script), state_of(module));
  EXPECT_TRUE(script.attr("linear").toModule().attr("weight").toTensor().requires_grad());

  script.attr("linear").toModule().attr("bias").toTensor().detach().fill_(3);
  save(script, dir / "script.safetensors");
  Small other;
  const NamedTensors list = state_of(other);
  load(list, dir / "script.safetensors");
  expect_same(list, state_of(script));
  save(list, dir / "list.safetensors");
  EXPECT_EQ(read_safetensors(dir / "list.safetensors").tensors.size(), 7u);

  TensorModel model(parameters_of(other), [] { return 0; }, buffers_of(other));
  load(model, dir / "module.safetensors");
  expect_same(state_of(other), state_of(module));
  EXPECT_THROW(load(model, dir / "module.safetensors", torch::kCPU), InvalidArgument);
}

TEST(ModuleState, AnotherScriptIsRefusedAndUnchanged) {
  const TestDirectory dir;
  save(Small(4), dir / "wide.safetensors");
  torch::jit::Module script = small_script();
  const at::Tensor before = script.attr("linear").toModule().attr("weight").toTensor().clone();
  try {
    load(script, dir / "wide.safetensors");
    ADD_FAILURE() << "no error";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("linear.weight is [4, 2]"), HasSubstr("[3, 2]")));
  }
  EXPECT_TRUE(torch::equal(script.attr("linear").toModule().attr("weight").toTensor(), before));
}

// A checkpoint directory of a TorchScript module and its optimizer, by the parameters' names.
TEST(ModuleState, AScriptsCheckpointDirectoryContinuesItsTraining) {
  const TestDirectory dir;
  const auto trained = [](torch::jit::Module& script) {
    std::vector<at::Tensor> values;
    for (const auto& entry : parameters_of(script)) values.push_back(entry.second);
    return values;
  };
  const auto step = [](const std::vector<at::Tensor>& values, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    at::Tensor loss = torch::zeros({});
    for (const at::Tensor& value : values) loss = loss + value.pow(3).sum();
    loss.backward();
    optimizer.step();
  };
  torch::jit::Module script = small_script();
  const auto values = trained(script);
  torch::optim::AdamW optimizer(values, torch::optim::AdamWOptions(0.01));
  step(values, optimizer);
  const auto names = parameter_names(script, optimizer);
  ASSERT_TRUE(names.has_value());
  Checkpoint checkpoint;
  checkpoint.model.tensors = module_state(script);
  checkpoint.optimizer = by_name(optimizer_state(optimizer), *names);
  write_checkpoint(dir / "last", checkpoint);

  torch::jit::Module fresh = small_script();
  auto turned = trained(fresh);
  std::reverse(turned.begin(), turned.end());  // by name, not by position
  torch::optim::AdamW again(turned, torch::optim::AdamWOptions(0.5));
  set_module_state(fresh, read_checkpoint(dir / "last").model.tensors, "last");
  load_optimizer(again, fresh, dir / "last/optimizer.safetensors");
  step(values, optimizer);
  step(turned, again);
  expect_same(state_of(fresh), state_of(script));
}

TEST(ModuleState, OtherModelIsRefusedWithEveryDifferenceAndUnchanged) {
  const TestDirectory dir;
  Small a;
  NamedTensors state = module_state(*a);
  state.erase(state.begin());
  state.emplace_back("extra", torch::ones({1}));
  state.front().second = torch::ones({9});
  write_safetensors(dir / "m", state);
  Small b;
  const auto before = b->linear->bias.clone();
  try {
    load(b, dir / "m");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("missing: linear.weight"), HasSubstr("unexpected: extra"),
                      HasSubstr("linear.bias is [9] float there and [3] float in the model"),
                      Not(HasSubstr("\n"))));
  }
  EXPECT_TRUE(torch::equal(before, b->linear->bias));
}

TEST(ModuleState, DtypeIsCompared) {
  const TestDirectory dir;
  Small a, b;
  a->to(torch::kDouble);
  save(a, dir / "m");
  EXPECT_THROW(load(b, dir / "m"), CheckpointError);
}

TEST(ModuleState, PrefixOfAWrappedModelIsLeftOut) {
  Small a, b;
  NamedTensors state = module_state(*a);
  for (auto& [name, tensor] : state) name = "module." + name;
  set_module_state(*b, state, "m");
  EXPECT_TRUE(torch::equal(a->linear->weight, b->linear->weight));
  // Removes one prefix only, and only if every name has it.
  NamedTensors twice = state;
  for (auto& [name, tensor] : twice) name = "module." + name;
  EXPECT_THAT(message_of<CheckpointError>([&] { set_module_state(*b, twice, "m"); }),
              AllOf(HasSubstr("m: does not fit"), HasSubstr("('module.' left out of names)"),
                    HasSubstr("unexpected: module.linear.bias")));
  NamedTensors mixed = state;
  mixed.back().first = "x";
  EXPECT_THAT(message_of<CheckpointError>([&] { set_module_state(*b, mixed, "m"); }),
              AllOf(HasSubstr("unexpected: module.linear.bias"), Not(HasSubstr("left out"))));
}

// The prefixes of torch.compile for a whole model and a part of one, of FSDP and of activation
// checkpoints, in any nesting.
TEST(ModuleState, PrefixesOfCompiledModelsAreLeftOut) {
  Small a, b;
  for (const char* prefix :
       {"_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module._orig_mod.module.",
        "_fsdp_wrapped_module._checkpoint_wrapped_module."}) {
    NamedTensors state = module_state(*a);
    for (auto& [name, tensor] : state) name = prefix + name;
    torch::nn::init::zeros_(b->linear->weight);
    set_module_state(*b, state, "m");
    EXPECT_TRUE(torch::equal(a->linear->weight, b->linear->weight)) << prefix;
    EXPECT_EQ(strip_wrapper_prefixes(&state), prefix);
  }
  NamedTensors part = module_state(*a);
  for (auto& [name, tensor] : part) {
    if (name.starts_with("norm.")) name.insert(5, "_orig_mod.");
  }
  set_module_state(*b, part, "m");
  EXPECT_EQ(strip_wrapper_prefixes(&part), "_orig_mod.");
  // If two names would become one, all stay; a name that merely ends like a prefix stays, too.
  NamedTensors both{{"a", {}}, {"_orig_mod.a", {}}};
  EXPECT_EQ(strip_wrapper_prefixes(&both), "");
  EXPECT_EQ(both.back().first, "_orig_mod.a");
  NamedTensors other{{"my_orig_mod.a", {}}};
  EXPECT_EQ(strip_wrapper_prefixes(&other), "");
}

TEST(ModuleState, NamesOfAFileDoNotReachTheTerminalAsTheyAre) {
  Small a;
  NamedTensors state = module_state(*a);
  state.front().first = "\x1b]0;x\x07";
  const std::string message =
      message_of<CheckpointError>([&] { set_module_state(*a, state, "m"); });
  EXPECT_THAT(message, HasSubstr("unexpected: ?]0;x?"));
}

// A model whose own names begin this way keeps them.
TEST(ModuleState, PrefixThatIsTheModelsOwnStays) {
  struct Outer : torch::nn::Module {
    Outer() { module = register_module("module", torch::nn::Linear(2, 2)); }
    torch::nn::Linear module{nullptr};
  } a, b;
  set_module_state(b, module_state(a), "m");
  EXPECT_TRUE(torch::equal(a.module->weight, b.module->weight));
  NamedTensors compiled = module_state(a);
  for (auto& [name, tensor] : compiled) name = "_orig_mod." + name;
  set_module_state(b, compiled, "m");
}

}  // namespace lockstep::inline v0::module_state_test
