#include "lockstep/checkpoint/module_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

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
