#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/kernels/kernels_test.h"

namespace lockstep::inline v0::kernels::cross_entropy_test {
namespace {

using testing::every;
using testing::expect_close;
using testing::numbers;

constexpr int64_t kWidths[] = {1, 15, 16, 17, 33, 64, 2047, 2048, 2049, 5000};
constexpr int64_t kRows = 5;

struct Found {
  std::vector<float> most = std::vector<float>(kRows), sum = most, target = most, logits;
};

Found sums_of(const Kernels& kernels, const std::vector<float>& logits, int64_t width,
              const std::vector<int64_t>& targets, bool keeps) {
  Found found;
  found.logits = logits;
  const CrossEntropy of{width, width, found.logits.data(), targets.data()};
  // The rows are cut in two, as threads do.
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 2}, {2, kRows}})
    kernels.log_sums(of, {found.most.data(), found.sum.data(), found.target.data()}, keeps, begin,
                     end);
  return found;
}

TEST(CrossEntropy, ASumIsThatOfDouble) {
  for (const int64_t width : kWidths) {
    const std::vector<float> logits = numbers(kRows * width, 4, 6);
    const std::vector<int64_t> targets{0, width - 1, width / 2, -100, width};
    for (const Kernels* kernels : every()) {
      const Found found = sums_of(*kernels, logits, width, targets, false);
      EXPECT_EQ(found.logits, logits);
      for (int64_t r = 0; r < kRows; ++r) {
        const float* const row = logits.data() + r * width;
        const float most = *std::max_element(row, row + width);
        double sum = 0;
        for (int64_t c = 0; c < width; ++c) sum += std::exp(static_cast<double>(row[c]) - most);
        EXPECT_EQ(found.most[r], most) << kernels->name << ", width " << width;
        EXPECT_NEAR(found.sum[r], sum, 1e-6 * sum) << kernels->name << ", width " << width;
        EXPECT_EQ(found.target[r], r < 3 ? row[targets[r]] : 0) << kernels->name;
      }
    }
  }
}

TEST(CrossEntropy, TheGradientIsThatOfDouble) {
  for (const int64_t width : kWidths) {
    const std::vector<float> logits = numbers(kRows * width, 5, 3);
    const std::vector<int64_t> targets{0, width - 1, width / 2, 0,
                                       width};  // the last is outside of this part
    const std::vector<float> scales{0.5F, 1, 0.25F, 0, 2};
    for (const Kernels* kernels : every()) {
      Found found = sums_of(*kernels, logits, width, targets, true);
      std::vector<float> factors(kRows);
      for (int64_t r = 0; r < kRows; ++r) factors[r] = scales[r] / found.sum[r];
      kernels->cross_entropy_gradient({width, width, found.logits.data(), targets.data()},
                                      factors.data(), scales.data(), 0, kRows);
      std::vector<double> expected(kRows * width);
      for (int64_t r = 0; r < kRows; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < width; ++c) sum += std::exp(double{logits[r * width + c]});
        for (int64_t c = 0; c < width; ++c)
          expected[r * width + c] =
              scales[r] * (std::exp(double{logits[r * width + c]}) / sum - (c == targets[r]));
      }
      expect_close(found.logits, expected, 1e-6,
                   std::string(kernels->name) + ", width " + std::to_string(width));
    }
  }
}

// A row that does not count may hold any values; the values of one that counts matter.
TEST(CrossEntropy, WhatDoesNotCountIsZero) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<int64_t> targets(kRows, 1);
  for (const Kernels* kernels : every()) {
    std::vector<float> logits(kRows * 40, 1);
    logits[3 * 40 + 20] = kNan;
    Found found = sums_of(*kernels, logits, 40, targets, true);
    EXPECT_TRUE(std::isnan(found.sum[3])) << kernels->name;
    EXPECT_NEAR(found.sum[2], 40, 1e-5) << kernels->name;
    const std::vector<float> factors{0, 0, 0, kNan, 0}, scales(kRows, 0);
    kernels->cross_entropy_gradient({40, 40, found.logits.data(), targets.data()}, factors.data(),
                                    scales.data(), 0, kRows);
    EXPECT_EQ(found.logits, std::vector<float>(kRows * 40, 0)) << kernels->name;
  }
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::cross_entropy_test
