#include <limits>

#include "lockstep/kernels/kernels_test.h"

namespace lockstep::inline v0::kernels {
namespace {

using testing::every;
using testing::from_bf16;
using testing::numbers;
using testing::to_bf16;

TEST(Layout, RoundsToNearestEven) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x{0,       -0.0F,     1,         1.00390625F, 1.01171875F, -1.0039064F,
                             3.4e38F, infinity,  -infinity, 1e-40F,      NAN,         2.5F,
                             65536,   -65537.0F, 1e-30F,    0.1F,        0.2F,        0.3F};
  for (const Kernels* k : every()) {
    std::vector<uint16_t> bits(x.size());
    std::vector<float> back(x.size());
    k->round(x.data(), bits.data(), static_cast<int64_t>(x.size()));
    k->widen(bits.data(), back.data(), static_cast<int64_t>(x.size()));
    EXPECT_EQ(bits[1], 0x8000) << k->name;
    EXPECT_EQ(back[3], 1.0F) << k->name;         // a tie, to even
    EXPECT_EQ(back[4], 1.015625F) << k->name;    // a tie, to even
    EXPECT_EQ(back[5], -1.0078125F) << k->name;  // above a tie
    EXPECT_EQ(back[6], infinity) << k->name;
    EXPECT_EQ(back[7], infinity) << k->name;
    EXPECT_TRUE(std::isnan(back[10])) << k->name;
    for (size_t i = 11; i < x.size(); ++i)
      EXPECT_NEAR(back[i], x[i], std::abs(x[i]) / 256) << k->name;
  }
}

TEST(Layout, RoundsRows) {
  const std::vector<float> x = numbers(7 * 50, 4);
  for (const Kernels* k : every()) {
    std::vector<uint16_t> bits(7 * 45, 9);
    k->round_rows(x.data(), 50, bits.data(), 45, 7, 40);
    for (int64_t r = 0; r < 7; ++r)
      for (int64_t c = 0; c < 45; ++c) {
        const uint16_t expected = c < 40 ? to_bf16({x[r * 50 + c]})[0] : 9;
        ASSERT_EQ(bits[r * 45 + c], expected) << k->name;
      }
  }
}

template <typename T>
std::vector<T> counted(int64_t count) {
  std::vector<T> result(static_cast<size_t>(count));
  for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<T>(i + 1);
  return result;
}

template <typename T>
void transposes(Type type) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {3, 70}, {16, 16}, {32, 32}, {33, 65}, {64, 48}, {100, 31}}) {
    const int64_t pitch = columns + 2, to_pitch = rows + 5;
    const std::vector<T> x = counted<T>(rows * pitch);
    for (const Kernels* k : every()) {
      std::vector<T> y(columns * to_pitch, 0);
      k->transpose({type, x.data(), rows, columns, pitch}, y.data(), to_pitch);
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = 0; r < to_pitch; ++r)
          ASSERT_EQ(y[c * to_pitch + r], r < rows ? x[r * pitch + c] : T(0))
              << k->name << " " << rows << " " << columns << " " << r << " " << c;
    }
  }
}

TEST(Layout, Transposes) {
  transposes<uint16_t>(Type::kBFloat16);
  transposes<float>(Type::kFloat32);
}

// The place of element (r, c) of a packed matrix of `inner` rows.
int64_t packed_at(Type type, int64_t r, int64_t c, int64_t inner, int64_t columns) {
  if (type == Type::kFloat32) return r * columns + c;
  const int64_t panel = c / kPanel * kPanel, width = std::min(kPanel, columns - panel);
  return panel * inner + r / 2 * width * 2 + (c - panel) * 2 + r % 2;
}

template <typename T>
void packs(Type type) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {128, 64}, {1, 1}, {17, 64}, {33, 24}, {80, 7}, {16, 130}}) {
    const int64_t pitch = columns + (rows == 80 ? 4 : 6);
    const std::vector<T> x = counted<T>(rows * pitch);
    const auto up = [](int64_t n) { return (n + kPad - 1) / kPad * kPad; };
    const Source source{type, x.data(), rows, columns, pitch};
    for (const Kernels* k : every()) {
      std::vector<T> by_rows(up(rows) * up(columns), 9), by_columns = by_rows;
      k->pack_rows(source, up(rows), up(columns), by_rows.data());
      k->pack_columns(source, up(columns), up(rows), by_columns.data());
      for (int64_t r = 0; r < up(rows); ++r)
        for (int64_t c = 0; c < up(columns); ++c) {
          const T expected = r < rows && c < columns ? x[r * pitch + c] : T(0);
          ASSERT_EQ(by_rows[packed_at(type, r, c, up(rows), up(columns))], expected)
              << k->name << " rows " << rows << "x" << columns << " at " << r << "," << c;
          ASSERT_EQ(by_columns[packed_at(type, c, r, up(columns), up(rows))], expected)
              << k->name << " columns " << rows << "x" << columns << " at " << r << "," << c;
        }
    }
  }
}

TEST(Layout, Packs) {
  packs<uint16_t>(Type::kBFloat16);
  packs<float>(Type::kFloat32);
}

TEST(Layout, SumsRows) {
  const int64_t rows = 20, columns = 45;
  const std::vector<float> x = from_bf16(to_bf16(numbers(rows * columns, 5)));
  const std::vector<uint16_t> narrow = to_bf16(x);
  std::vector<float> expected(columns);
  for (int64_t r = 2; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) expected[c] += x[r * columns + c];
  for (const Kernels* k : every()) {
    std::vector<float> a(columns), b(columns);
    k->sum_rows({Type::kFloat32, x.data(), rows, columns, columns}, a.data(), 2, 10);
    k->sum_rows({Type::kFloat32, x.data(), rows, columns, columns}, a.data(), 10, rows);
    k->sum_rows({Type::kBFloat16, narrow.data(), rows, columns, columns}, b.data(), 2, rows);
    EXPECT_EQ(a, expected) << k->name;
    EXPECT_EQ(b, expected) << k->name;
  }
}

}  // namespace
}  // namespace lockstep::inline v0::kernels
