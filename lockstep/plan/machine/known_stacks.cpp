#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/plan/machine/stack.h"

namespace lockstep::inline v0::plan {
namespace {

std::vector<Stack> make_stacks() {
  return {
      Stack{},
      {.name = "megatron-2021", .fused_attention = false, .overlap = 0},
      {.name = "deepspeed-2021", .fused_attention = false},
      {.name = "megatron-2022", .fused_attention = false, .overlap = 0},
      {.name = "megascale"},
      {.name = "nemo"},
      {.name = "bridge"},
      {.name = "bridge-gb300"},
      {.name = "bridge-experts"},
      {.name = "automodel"},
      {.name = "llm-foundry"},
      {.name = "llm-foundry-a100"},
      {.name = "llama3"},
      {.name = "torchtitan"},
      {.name = "torchtitan-eager"},
      {.name = "fugaku", .fused_attention = false},
  };
}

const std::vector<Stack>& all_stacks() {
  static const std::vector<Stack> all = make_stacks();
  return all;
}

}  // namespace

const std::vector<std::string>& stack_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Stack& stack : all_stacks()) all.push_back(stack.name);
    return all;
  }();
  return names;
}

const Stack& known_stack(std::string_view name) {
  for (const Stack& stack : all_stacks())
    if (stack.name == name) return stack;
  const std::string nearest = nearest_name(name, stack_names());
  throw InvalidArgument("there is no stack '" + std::string(name) + "'" +
                        (nearest.empty() ? "" : "; did you mean " + nearest + "?") +
                        " Give one of: " + joined(stack_names()));
}

}  // namespace lockstep::inline v0::plan
