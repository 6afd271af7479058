#include "lockstep/rpc/internal/gradient_sums.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace lockstep::inline v0::rpc::internal {
namespace {

TEST(Turn, RoundsInTheirOrderAndTheLaterCallFirst) {
  const std::vector<Turn> order{{1, {3}}, {1, {2, 1}}, {1, {2, 0, 4}}, {1, {2, 0}}, {1, {2}},
                                {1, {0}}, {1, {}},     {2, {9}},       {2, {}}};
  for (size_t i = 0; i < order.size(); ++i)
    for (size_t j = 0; j < order.size(); ++j)
      EXPECT_EQ(order[i] < order[j], i < j) << i << ' ' << j;
}

// Values whose sum depends on the order: each of 720 orders of arrival ends with the same bits.
TEST(GradientSums, EveryOrderOfArrivalGivesTheSameBits) {
  const std::vector<float> values{1e8F, 1.F, -1e8F, 3.F, 1e-3F, 7e7F};
  const at::Tensor parameter = at::zeros({1});
  float wanted = 0;
  for (size_t i = values.size(); i-- > 0;) wanted += values[i];
  std::vector<uint32_t> arrival(values.size());
  std::iota(arrival.begin(), arrival.end(), 0);
  do {
    GradientSums sums;
    std::vector<uint32_t> open(values.size());
    std::iota(open.begin(), open.end(), 0);
    for (const uint32_t call : arrival) {
      sums.add({1, {call}}, parameter, at::full({1}, values[call]));
      std::erase(open, call);
      if (open.empty())
        sums.settle();
      else
        sums.settle_before({1, {open.back()}});
    }
    ASSERT_EQ(sums.of(parameter).item<float>(), wanted);
    ASSERT_EQ(sums.waiting(), 0U);
  } while (std::next_permutation(arrival.begin(), arrival.end()));
}

TEST(GradientSums, WaitsForWhatComesBeforeAndForNothingElse) {
  const at::Tensor a = at::zeros({2}), b = at::zeros({2});
  GradientSums sums;
  sums.add({1, {1}}, a, at::ones({2}));
  sums.add({1, {1}}, b, at::full({2}, 2.F));
  sums.settle_before({1, {2}});
  EXPECT_EQ(sums.waiting(), 2U) << "call 2 has not run";
  EXPECT_FALSE(sums.of(a).defined());
  sums.add({1, {2}}, a, at::ones({2}));
  sums.settle_before({1, {0}});
  EXPECT_EQ(sums.waiting(), 0U);
  EXPECT_TRUE(sums.of(a).equal(at::full({2}, 2.F)));
  EXPECT_TRUE(sums.of(b).equal(at::full({2}, 2.F)));
  EXPECT_EQ(sums.all().size(), 2U);
  sums.add({2, {}}, a, at::ones({2}));
  sums.settle_before({1, {0}});
  EXPECT_EQ(sums.waiting(), 1U) << "a round behind the one that is open";
  sums.settle();
  EXPECT_TRUE(sums.of(a).equal(at::full({2}, 3.F)));
}

TEST(GradientSums, LeavesTheTensorsThatItWasGivenAsTheyAre) {
  const at::Tensor parameter = at::zeros({2}), given = at::ones({2});
  GradientSums sums;
  sums.add({1, {1}}, parameter, given);
  sums.add({1, {0}}, parameter, at::ones({2}));
  sums.settle();
  EXPECT_TRUE(sums.of(parameter).equal(at::full({2}, 2.F)));
  EXPECT_TRUE(given.equal(at::ones({2})));
}

}  // namespace
}  // namespace lockstep::inline v0::rpc::internal
