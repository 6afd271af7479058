#include "lockstep/kernels/normal.h"

#include <algorithm>
#include <utility>

#include "lockstep/kernels/kernels_test.h"

namespace lockstep::inline v0::kernels {
namespace {

using testing::every;
using testing::expect_close;

constexpr int64_t kCount = 1 << 20;

std::vector<float> drawn(const Kernels& kernels, uint64_t seed, int64_t count) {
  std::vector<float> result(static_cast<size_t>(count));
  kernels.fill_normal(seed, 1, result.data(), 0, count);
  return result;
}

// The mean of the products of number i and number i + distance of another seed, in standard
// deviations.
double correlation(const std::vector<float>& a, const std::vector<float>& b, size_t distance) {
  double sum = 0;
  for (size_t i = 0; i + distance < a.size(); ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i + distance]);
  return sum / std::sqrt(static_cast<double>(a.size() - distance));
}

TEST(Normal, IsThePlainCodeOnEveryProcessor) {
  for (const Kernels* kernels : every()) {
    for (const int64_t count : {1, 15, 16, 17, 31, 33, 1023, 1025, 70000}) {
      const auto numbers = drawn(*kernels, 5, count);
      std::vector<double> expected;
      for (int64_t i = 0; i < count; ++i) expected.push_back(normal_number(5, i));
      expect_close(numbers, expected, 2e-6, kernels->name);
    }
  }
}

TEST(Normal, DoesNotDependOnCutsThreadsOrVectors) {
  constexpr int64_t kSome = 300 * kNormalRow + 77;
  const auto whole = drawn(kernels(), 9, kSome);
  std::vector<float> parts(whole.size());
  for (int64_t begin = 0; begin < kSome; begin += 3 * kNormalRow)
    kernels().fill_normal(9, 1, parts.data(), begin, std::min(begin + 3 * kNormalRow, kSome));
  EXPECT_EQ(parts, whole);
  fill_normal(parts.data(), kSome, 9, 1, 2);
  EXPECT_EQ(parts, whole);
  // The first one has no fused multiplication and addition.
  const auto all = every();
  for (size_t i = 2; i < all.size(); ++i)
    EXPECT_EQ(drawn(*all[i], 9, kSome), drawn(*all[1], 9, kSome));
}

TEST(Normal, APartIsOfTheSameNumbers) {
  constexpr int64_t kSome = 200 * kNormalRow + 77;
  std::vector<float> whole(kSome);
  fill_normal(whole.data(), kSome, 9, 0.5F, 2);
  for (const int64_t first :
       {int64_t{0}, int64_t{1}, int64_t{1000}, kNormalRow, 3 * kNormalRow + 5}) {
    for (const int64_t count :
         {int64_t{1}, int64_t{23}, int64_t{24}, kNormalRow, 100 * kNormalRow + 3}) {
      std::vector<float> part(static_cast<size_t>(count) + 1, 7);
      fill_normal_part(part.data(), first, count, 9, 0.5F, 2);
      EXPECT_TRUE(std::equal(part.begin(), part.end() - 1, whole.begin() + first))
          << first << " " << count;
      EXPECT_EQ(part.back(), 7);
    }
  }
}

TEST(Normal, WritesNothingBeyondItsCount) {
  for (const Kernels* kernels : every()) {
    std::vector<float> numbers(64, 7);
    kernels->fill_normal(1, 1, numbers.data(), 0, 37);
    for (size_t i = 37; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], 7) << kernels->name;
  }
}

TEST(Normal, HasTheDistribution) {
  auto numbers = drawn(kernels(), 3, kCount);
  const double n = kCount;
  double sums[4] = {};
  for (const float x : numbers) {
    double power = 1;
    for (double& sum : sums) sum += power *= static_cast<double>(x);
  }
  EXPECT_LT(std::abs(sums[0]) / std::sqrt(n), 4);
  EXPECT_LT(std::abs(sums[1] - n) / std::sqrt(2 * n), 4);
  EXPECT_LT(std::abs(sums[2]) / std::sqrt(15 * n), 4);
  EXPECT_LT(std::abs(sums[3] - 3 * n) / std::sqrt(96 * n), 4);
  // By Kolmogorov and Smirnov, one sample in a thousand exceeds 1.95.
  std::sort(numbers.begin(), numbers.end());
  double most = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double below = 0.5 * std::erfc(-static_cast<double>(numbers[i]) / std::sqrt(2.0));
    most = std::max({most, std::abs(below - static_cast<double>(i) / n),
                     std::abs(below - static_cast<double>(i + 1) / n)});
  }
  EXPECT_LT(most * std::sqrt(n), 1.95);
  EXPECT_LT(numbers.front(), -4.5F);
  EXPECT_GT(numbers.back(), 4.5F);
}

TEST(Normal, NumbersAreIndependent) {
  const auto numbers = drawn(kernels(), 40, kCount);
  for (const size_t distance : {1, 2, 8, 15, 16, 17, 32, 48, 1024, 1040, 4096})
    EXPECT_LT(std::abs(correlation(numbers, numbers, distance)), 4.5) << distance;
  for (const uint64_t seed : {41ULL, 42ULL, 40ULL + (1ULL << 32), 40ULL + (1ULL << 63)})
    EXPECT_LT(std::abs(correlation(numbers, drawn(kernels(), seed, kCount), 0)), 4.5) << seed;
  // The squares of a pair by Box and Muller are independent, too.
  double sum = 0;
  for (size_t i = 0; i + 16 < numbers.size(); i += i % 16 == 15 ? 17 : 1) {
    const auto x = static_cast<double>(numbers[i]), y = static_cast<double>(numbers[i + 16]);
    sum += (x * x - 1) * (y * y - 1);
  }
  EXPECT_LT(std::abs(sum) / std::sqrt(4.0 * kCount / 2), 4.5);
}

}  // namespace
}  // namespace lockstep::inline v0::kernels
