#include "lockstep/core/errors.h"
#include "lockstep/core/known_names.h"
#include "lockstep/plan/machine/stack.h"

namespace lockstep::inline v0::plan {
namespace {

// Constants are fitted, in the order of the fields, to the rows of lockstep/plan/rows that say so; what a comment names is
// set. Sizes at which products reach half are set by the machine: 150 on A100 with Megatron's kernels, 100 and 60 else.
std::vector<Stack> megatron_stacks() {
  constexpr double kHalf = 150, kPasses = 1.16;
  Stack y2021{.name = "megatron-2021",
              .matrix = 0.788,
              .half = kHalf,
              .fused_attention = false,
              .passes = kPasses,
              .overlap = 0,  // gradients are averaged after the backward
              .keeps_gathered = false,
              .source = "three rows of arXiv:2104.04473, table 1: matrix, passes"};
  Stack zero = y2021;
  zero.name = "deepspeed-2021";
  zero.links = 0.088;
  zero.overlap = 0.61;
  zero.source = "two rows of ZeRO-3 of its table 2: links, overlap; else megatron-2021";
  Stack y2022 = y2021;
  y2022.name = "megatron-2022";
  y2022.matrix = 0.769;
  y2022.source = "22B of arXiv:2205.05198: matrix; else megatron-2021";
  Stack nlg = y2021;
  nlg.name = "mt-nlg";
  nlg.matrix = 0.607;
  nlg.source = "2240 GPUs of arXiv:2201.11990: matrix; else megatron-2021";
  Stack scale = y2022;
  scale.name = "megascale";
  scale.fused_attention = true;
  scale.overlap = 0.9;
  scale.tensor_overlap = 0.5;
  scale.source =
      "nothing: megatron-2022 with attention in one kernel and communication that is hidden";
  return {y2021, zero, y2022, nlg, scale};
}

std::vector<Stack> nvidia_stacks() {
  constexpr double kHalf = 100, kTensorOverlap = 0.8;
  Stack nemo{.name = "nemo",
             .matrix = 0.54,
             .half = kHalf,
             .attention = 0.55,
             .passes = 2.2,
             .tensor_overlap = kTensorOverlap,
             .keeps_gathered = false,
             .source = "three rows of NeMo 24.07 in float8: matrix, passes"};
  Stack bridge = nemo;
  bridge.name = "bridge";
  bridge.matrix = 0.685;
  bridge.source = "Llama 3 8B on H100 of Megatron Bridge 25.11: matrix; else nemo";
  Stack gb300 = nemo;
  gb300.name = "bridge-gb300";
  gb300.matrix = 0.631;
  gb300.attention = 0.4;
  gb300.passes = 0.71;
  gb300.source = "8B and 405B on GB300 of Megatron Bridge 25.11: matrix, passes; else nemo";
  Stack experts = bridge;
  experts.name = "bridge-experts";
  experts.links = 1;
  experts.host = 0.004;
  experts.source = "Qwen3 235B and DeepSeek-V3 of Megatron Bridge: links, host; else bridge";
  Stack automodel = bridge;
  automodel.name = "automodel";
  automodel.links = 0.854;
  automodel.tensor_overlap = 0;
  automodel.source = "Qwen3 30B and DeepSeek-V3 on 256 GPUs of NeMo Automodel: links; else bridge";
  Stack llama{.name = "llama3",
              .matrix = 0.592,
              .half = kHalf,
              .attention = 0.45,
              .passes = 2,
              .source = "8192 GPUs of arXiv:2407.21783, table 4: matrix"};
  return {nemo, bridge, gb300, experts, automodel, llama};
}

std::vector<Stack> sharded_stacks() {
  constexpr double kHalf = 60;
  Stack foundry{.name = "llm-foundry",
                .matrix = 0.8,
                .half = kHalf,
                .attention = 0.187,
                .passes = 3.84,
                .overlap = 0,
                .source = "six rows of llm-foundry on H100: matrix, attention, passes, overlap"};
  Stack a100 = foundry;
  a100.name = "llm-foundry-a100";
  a100.matrix = 0.92;  // the most that products are known to reach
  a100.attention = 0.325;
  a100.passes = 3.5;
  a100.source = "five rows of llm-foundry on A100: attention, passes, overlap";
  Stack titan{.name = "torchtitan",
              .matrix = 0.637,
              .half = kHalf,
              .attention = 0.184,
              .passes = 2,
              .links = 1,
              .overlap = 0.5,
              // Outputs of 16 bits, of 32, their softmax, its gradient.
              .logit_bytes = 14,
              .source = "three compiled rows of torchtitan 2024-12: matrix, attention, links"};
  Stack eager = titan;
  eager.name = "torchtitan-eager";
  eager.passes = 4.36;
  eager.source = "its first row: passes; else torchtitan";
  return {foundry, a100, titan, eager};
}

// 32 bits on A64FX. Each result of an operator is memory that the allocator takes anew from the system, so that what only
// moves memory reaches less than a hundredth of its bandwidth (and the optimizer, which makes many of them).
Stack fugaku_stack() {
  return {
      .name = "fugaku",
      .matrix = 0.351,
      .half = 60,
      .attention = 0.0253,
      .fused_attention = false,
      .memory = 0.00442,
      .passes = 0.066,
      .links = 1,
      .overlap = 0,
      .fixed_bytes = 1.7e9,
      .logit_bytes = 4,
      .fragmentation = 1,
      .source =
          "five rows of DeepSpeedFugaku: matrix, attention, memory, passes, links; 124M on one node: memory"};
}

std::vector<Stack> make_stacks() {
  std::vector<Stack> all{Stack{
      .logit_bytes = 4, .own_model = true, .source = "nothing: what libraries usually reach"}};
  for (const auto& group : {megatron_stacks(), nvidia_stacks(), sharded_stacks(), {fugaku_stack()}})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

const std::vector<Stack>& all_stacks() {
  static const std::vector<Stack> all = make_stacks();
  return all;
}

}  // namespace

const std::vector<std::string>& stack_names() {
  static const std::vector<std::string> names = names_of(all_stacks());
  return names;
}

const Stack& known_stack(std::string_view name) {
  for (const Stack& stack : all_stacks())
    if (stack.name == name) return stack;
  throw InvalidArgument(unknown_name("stack", name, stack_names()) +
                        " Give one of: " + joined(stack_names()));
}

}  // namespace lockstep::inline v0::plan
