#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/plan/machine/stack.h"

namespace lockstep::inline v0::plan {
namespace {

std::vector<Stack> make_stacks() {
  return {
      Stack{},
      {.name = "megatron-2021",
       .matrix = 0.782,
       .half = 150,
       .attention = 0.5,
       .fused_attention = false,
       .passes = 1.1,
       .overlap = 0},
      {.name = "deepspeed-2021",
       .matrix = 0.782,
       .half = 150,
       .attention = 0.5,
       .fused_attention = false,
       .passes = 1.1,
       .links = 0.1,
       .overlap = 0.6},
      {.name = "megatron-2022",
       .matrix = 0.767,
       .half = 150,
       .attention = 0.5,
       .fused_attention = false,
       .passes = 1.1,
       .overlap = 0},
      {.name = "mt-nlg",
       .matrix = 0.65,
       .half = 150,
       .attention = 0.5,
       .fused_attention = false,
       .passes = 1.1,
       .overlap = 0},
      {.name = "megascale", .matrix = 0.767, .half = 150, .passes = 1.1, .tensor_overlap = 0.5},
      {.name = "nemo",
       .matrix = 0.537,
       .half = 100,
       .attention = 0.55,
       .passes = 2.14,
       .tensor_overlap = 0.8},
      {.name = "bridge",
       .matrix = 0.679,
       .half = 100,
       .attention = 0.55,
       .passes = 2.14,
       .tensor_overlap = 0.8},
      {.name = "bridge-gb300",
       .matrix = 0.634,
       .half = 100,
       .attention = 0.4,
       .passes = 0.75,
       .tensor_overlap = 0.8},
      {.name = "bridge-experts",
       .matrix = 0.679,
       .half = 100,
       .attention = 0.55,
       .passes = 2.14,
       .tensor_overlap = 0.8,
       .host = 0.008},
      {.name = "automodel",
       .matrix = 0.8,
       .half = 100,
       .attention = 0.45,
       .passes = 2.14,
       .links = 0.7,
       .overlap = 0.5},
      {.name = "llm-foundry",
       .matrix = 0.8,
       .half = 60,
       .attention = 0.187,
       .passes = 3.5,
       .overlap = 0},
      {.name = "llm-foundry-a100",
       .matrix = 0.92,
       .half = 60,
       .attention = 0.33,
       .passes = 4,
       .overlap = 0},
      {.name = "llama3", .matrix = 0.592, .half = 100, .attention = 0.45, .passes = 2},
      {.name = "torchtitan",
       .matrix = 0.64,
       .half = 60,
       .attention = 0.184,
       .passes = 2,
       .links = 0.99,
       .overlap = 0.5,
       .logit_bytes = 14},
      {.name = "torchtitan-eager",
       .matrix = 0.64,
       .half = 60,
       .attention = 0.184,
       .passes = 4,
       .links = 0.99,
       .overlap = 0.5,
       .logit_bytes = 14},
      {.name = "fugaku",
       .matrix = 0.3,
       .half = 60,
       .attention = 0.05,
       .fused_attention = false,
       .memory = 0.01,
       .passes = 0.5,
       .links = 0.4,
       .overlap = 0},
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
