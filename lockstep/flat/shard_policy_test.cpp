#include "lockstep/flat/shard_policy.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/flat/shard_plan.h"

namespace lockstep::inline v0::flat::shard_policy_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor meta(at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
}

NamedTensors model() {
  return {{"embed.weight", meta({100, 8})}, {"layers.0.up.weight", meta({32, 8})},
          {"layers.0.up.bias", meta({32})}, {"layers.1.up.weight", meta({32, 8})},
          {"layers.1.up.bias", meta({32})}, {"scale", meta({})}};
}

std::string refusal(const ShardPolicy& policy, const NamedTensors& tensors = model()) {
  return message_of<InvalidArgument>([&] { choose_shards(policy, tensors); });
}

TEST(ShardPolicy, TheFirstRuleThatFitsDecides) {
  const ShardPolicy policy{{{.cut = Cut::kWhole, .names = {"embed"}},
                            {.cut = Cut::kRows, .names = {"layers.*"}, .dims = 2, .rows = 4},
                            {.cut = Cut::kWhole, .below = 32},
                            {.cut = Cut::kRows, .names = {"layers.1.up.bias"}}}};
  const ShardChoice choice = choose_shards(policy, model());
  EXPECT_THAT(choice.rule, ElementsAre(0, 1, 4, 1, 3, 2));
  EXPECT_THAT(choice.grains, ElementsAre(kUncut, 4 * 8, 1, 4 * 8, 1, kUncut));
  EXPECT_EQ(to_text(policy, choice),
            "rule 1 (whole of 'embed'): 1 tensor, 3200 bytes\n"
            "rule 2 (4 rows of 'layers.*', 2 dims): 2 tensors, 2048 bytes\n"
            "rule 3 (whole, below 32 elements): 1 tensor, 4 bytes\n"
            "rule 4 (rows of 'layers.1.up.bias'): 1 tensor, 128 bytes\n"
            "no rule (anywhere): 1 tensor, 128 bytes\n");
}

TEST(ShardPolicy, WithoutRulesAllIsCutAnywhere) {
  EXPECT_THAT(choose_shards({}, model()).grains, ElementsAre(1, 1, 1, 1, 1, 1));
}

TEST(ShardPolicy, RulesThatTakeNothingAreNamed) {
  EXPECT_THAT(
      refusal({{{.names = {"embed", "layers.0.up.wait"}}}}),
      HasSubstr("names 'layers.0.up.wait', and no parameter is called so or lies below; did "
                "you mean 'layers.0.up.weight'?"));
  EXPECT_THAT(refusal({{{.names = {"lay*.0"}}}}), HasSubstr("names 'lay*.0'"));
  EXPECT_THAT(refusal({{{.cut = Cut::kRows, .dims = 3}}}),
              HasSubstr("rule 1 (rows, 3 dims) takes no parameter"));
  EXPECT_THAT(refusal({{{.names = {"embed"}}, {.names = {"embed.weight"}}}}),
              HasSubstr("rule 2 (anywhere of 'embed.weight') takes no parameter"));
  EXPECT_THAT(refusal({{{.dims = -1}}}), HasSubstr("fewer than no dims"));
  EXPECT_THAT(refusal({{{.below = -1}}}), HasSubstr("fewer than no elements"));
  EXPECT_THAT(refusal({{{.cut = Cut::kRows, .rows = 0}}}), HasSubstr("rows = 0"));
  EXPECT_THAT(refusal({{{.cut = Cut::kWhole, .rows = 2}}}), HasSubstr("rows = 2"));
}

TEST(ShardPolicy, RowsAreStretchesOfMemory) {
  const ShardPolicy rows{{{.cut = Cut::kRows}}};
  EXPECT_THAT(refusal(rows, {{"turned", meta({5, 8}).t()}}),
              HasSubstr("cuts 'turned' by rows, which lies transposed"));
  const at::Tensor images = meta({6, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  // A tensor with holes becomes contiguous.
  const NamedTensors fine = {{"images", images},
                             {"holes", meta({6, 8}).narrow(1, 0, 5)},
                             {"one row", meta({7, 1}).t()},
                             {"number", meta({})},
                             {"empty", meta({0, 3})}};
  EXPECT_THAT(choose_shards(rows, fine).grains, ElementsAre(36, 5, 7, kUncut, kUncut));
}

}  // namespace
}  // namespace lockstep::inline v0::flat::shard_policy_test
