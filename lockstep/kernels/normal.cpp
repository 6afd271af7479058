#include "lockstep/kernels/normal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "lockstep/kernels/kernels.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/random_word.h"

namespace lockstep::inline v0::kernels {

namespace {

// The place of number 0, if number `index` is at `at`.
float* from_zero(float* at, int64_t index) {
  return reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(at) -
                                  static_cast<uintptr_t>(index) * sizeof(float));
}

}  // namespace

double normal_number(uint64_t seed, int64_t index) {
  const uint64_t key = row_key(seed, index / kNormalRow);
  const auto column = static_cast<uint32_t>(index % kNormalRow);
  const uint32_t first = column / 32 * 32 + column % 16;
  const uint32_t length = random_word(key, first), turn = random_word(key, first + 16);
  // The result is in (0, 1], rounded to float32, which close to 1 is coarser than the halves.
  const float uniform = (static_cast<float>(length >> 8) + 0.5F) / (1 << 24);
  const double radius = std::sqrt(-2 * std::log(static_cast<double>(uniform)));
  const double angle = (turn & 0xffffff) * (std::numbers::pi / 4 / (1 << 24));
  double x = std::cos(angle), y = std::sin(angle);
  if ((turn >> 29 & 1) != 0) std::swap(x, y);
  if (column % 32 < 16) return (turn >> 31 != 0 ? -radius : radius) * x;
  return ((turn >> 30 & 1) != 0 ? -radius : radius) * y;
}

void fill_normal(float* to, int64_t count, uint64_t seed, float deviation, int threads) {
  constexpr int64_t kPiece = 64 * kNormalRow;
  in_parallel(count, kPiece, threads, [&](int64_t begin, int64_t end) {
    kernels().fill_normal(seed, deviation, to, begin, end);
  });
}

void fill_normal_part(float* to, int64_t first, int64_t count, uint64_t seed, float deviation,
                      int threads) {
  // A kernel begins at a row.
  const int64_t rows = std::min((kNormalRow - first % kNormalRow) % kNormalRow, count);
  if (rows > 0) {
    std::array<float, kNormalRow> row;
    const int64_t skipped = first % kNormalRow;
    kernels().fill_normal(seed, deviation, from_zero(row.data(), first - skipped), first - skipped,
                          first + rows);
    std::copy_n(row.begin() + skipped, rows, to);
  }
  const int64_t begin = first + rows;
  if (rows == count) return;
  float* const base = from_zero(to + rows, begin);
  constexpr int64_t kPiece = 64 * kNormalRow;
  in_parallel(count - rows, kPiece, threads, [&](int64_t from, int64_t until) {
    kernels().fill_normal(seed, deviation, base, begin + from, begin + until);
  });
}

}  // namespace lockstep::inline v0::kernels
