#include "lockstep/kernels/dropout.h"

#include <string>
#include <utility>

#include "lockstep/kernels/kernels_test.h"

namespace lockstep::inline v0::kernels {
namespace {

constexpr int64_t kRows = 512, kColumns = 1024;

// The frequency with which two decisions fall out alike, in standard deviations from independence.
template <typename Other>
double deviations(const Dropout& dropout, double probability, const Other& other) {
  int64_t both = 0, count = 0;
  for (int64_t r = 0; r + 1 < kRows; ++r)
    for (int64_t c = 0; c + 32 < kColumns; ++c, ++count)
      both += !is_kept(dropout, r, c) && !other(r, c);
  const double expected = probability * probability;
  const auto n = static_cast<double>(count);
  return (static_cast<double>(both) / n - expected) / std::sqrt(expected * (1 - expected) / n);
}

TEST(Dropout, DropsAsOftenAsAsked) {
  for (const double p : {0.1, 0.5, 0.9, 0.001}) {
    const Dropout dropout = make_dropout(7, p);
    const double chance = dropout.threshold / 65536.0;
    EXPECT_NEAR(chance, p, 0.5 / 65536);
    EXPECT_NEAR(dropout.scale * (1 - chance), 1, 1e-6);
    int64_t dropped = 0;
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c) dropped += !is_kept(dropout, r, c);
    const double n = kRows * kColumns;
    EXPECT_LT(std::abs(static_cast<double>(dropped) / n - chance),
              5 * std::sqrt(chance * (1 - chance) / n))
        << p;
  }
}

TEST(Dropout, NeverAndItsBounds) {
  EXPECT_EQ(make_dropout(1, 0).threshold, 0U);
  EXPECT_EQ(make_dropout(1, 0).scale, 1.0F);
  EXPECT_EQ(make_dropout(1, 0.99999999).threshold, 65535U);
}

TEST(Dropout, DecisionsAreIndependent) {
  for (const double p : {0.1, 0.5}) {
    const Dropout dropout = make_dropout(20, p);
    for (const auto& [dr, dc] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 1}, {0, 2}, {0, 15}, {0, 16}, {0, 17}, {0, 32}, {1, 0}, {1, 1}, {1, 16}}) {
      EXPECT_LT(
          std::abs(deviations(
              dropout, p, [&](int64_t r, int64_t c) { return is_kept(dropout, r + dr, c + dc); })),
          5)
          << p << " " << dr << " " << dc;
    }
    for (const uint64_t seed : {21ULL, 22ULL, 20ULL + (1ULL << 32), 20ULL + (1ULL << 63)}) {
      const Dropout other = make_dropout(seed, p);
      EXPECT_LT(std::abs(deviations(dropout, p,
                                    [&](int64_t r, int64_t c) { return is_kept(other, r, c); })),
                5)
          << p << " " << seed;
    }
  }
}

// A row of one seed is not a shifted row of another seed.
TEST(Dropout, RowsAreNotShiftsOfEachOther) {
  const Dropout dropout = make_dropout(0, 0.5);
  for (int64_t shift = -8; shift <= 8; ++shift) {
    int64_t equal = 0;
    for (int64_t c = 64; c < kColumns; ++c)
      equal += is_kept(dropout, 0, c) == is_kept(dropout, 1, c + 32 * shift / 8);
    EXPECT_NEAR(static_cast<double>(equal) / (kColumns - 64), 0.5, 0.09) << shift;
  }
}

// The output of a norm with gamma 0 and beta 1 is the mask itself.
TEST(Dropout, KernelsDecideAsThePlainCode) {
  for (const int64_t width : {1, 16, 31, 32, 100, 768}) {
    const int64_t rows = 9;
    const std::vector<float> x = testing::numbers(rows * width, 3), gamma(width, 0), beta(width, 1);
    Norm norm;
    norm.width = width;
    norm.x = x.data();
    norm.gamma = gamma.data();
    norm.beta = beta.data();
    norm.epsilon = 1e-5F;
    norm.after = make_dropout(0x123456789abcdefULL, 0.3);
    for (const Kernels* kernels : testing::every()) {
      std::vector<float> y(x.size()), mean(rows), rstd(rows);
      kernels->norm(norm, {y.data(), nullptr, mean.data(), rstd.data()}, 0, rows);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < width; ++c)
          ASSERT_EQ(y[static_cast<size_t>(r * width + c)],
                    is_kept(norm.after, r, c) ? norm.after.scale : 0)
              << kernels->name << " " << width << " " << r << " " << c;
    }
  }
}

}  // namespace
}  // namespace lockstep::inline v0::kernels
