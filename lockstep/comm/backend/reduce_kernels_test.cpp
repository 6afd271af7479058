#include "lockstep/comm/backend/reduce_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/comm/backend/reduce_isa_table.h"

namespace lockstep::inline v0::reduce_kernels_test {
namespace {

template <typename T>
std::vector<T> reduce(const std::vector<std::vector<T>>& inputs, at::ScalarType dtype,
                      ReduceOp op) {
  std::vector<const std::byte*> views;
  for (const auto& input : inputs)
    views.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> output(inputs[0].size());
  reduce_buffers(reinterpret_cast<std::byte*>(output.data()), views,
                 static_cast<int64_t>(output.size()), dtype, op);
  return output;
}

TEST(ReduceKernels, AddsInRankOrder) {
  // 1e8 + 1 is 1e8 in float32, so the order shows.
  EXPECT_EQ(reduce<float>({{1e8f}, {1.0f}, {-1e8f}}, at::kFloat, ReduceOp::kSum)[0], 0.0f);
  EXPECT_EQ(reduce<float>({{1e8f}, {-1e8f}, {1.0f}}, at::kFloat, ReduceOp::kSum)[0], 1.0f);
}

TEST(ReduceKernels, SixteenBitTypesAreAddedInFloat32AndRoundedOnce) {
  // 256 + 1 + 1 in bfloat16: each step alone would round back to 256.
  const auto bf = reduce<at::BFloat16>({{256.0f}, {1.0f}, {1.0f}}, at::kBFloat16, ReduceOp::kSum);
  EXPECT_EQ(static_cast<float>(bf[0]), 258.0f);
  const auto half = reduce<at::Half>({{2048.0f}, {1.0f}, {1.0f}}, at::kHalf, ReduceOp::kSum);
  EXPECT_EQ(static_cast<float>(half[0]), 2050.0f);
  // The sum leaves float16's range, the average does not.
  EXPECT_EQ(
      static_cast<float>(reduce<at::Half>({{60000.0f}, {60000.0f}}, at::kHalf, ReduceOp::kAvg)[0]),
      60000.0f);
}

TEST(ReduceKernels, IntegersWrapAround) {
  EXPECT_EQ(reduce<int32_t>({{INT32_MAX}, {1}}, at::kInt, ReduceOp::kSum)[0], INT32_MIN);
  EXPECT_EQ(reduce<int64_t>({{INT64_MAX}, {2}}, at::kLong, ReduceOp::kProduct)[0], -2);
  EXPECT_EQ(reduce<uint8_t>({{200}, {100}}, at::kByte, ReduceOp::kSum)[0], 44);
  EXPECT_EQ(reduce<int8_t>({{-128}, {-128}}, at::kChar, ReduceOp::kProduct)[0], 0);
}

TEST(ReduceKernels, NanPropagatesThroughExtrema) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& inputs : {std::vector<std::vector<float>>{{nan}, {1.0f}}, {{1.0f}, {nan}}}) {
    EXPECT_TRUE(std::isnan(reduce<float>(inputs, at::kFloat, ReduceOp::kMin)[0]));
    EXPECT_TRUE(std::isnan(reduce<float>(inputs, at::kFloat, ReduceOp::kMax)[0]));
  }
}

TEST(ReduceKernels, LongBuffersAreWholeAndMayBeInPlace) {
  std::vector<double> a(100'003), b(a.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i), b[i] = 0.5;
  const std::byte* inputs[] = {reinterpret_cast<const std::byte*>(a.data()),
                               reinterpret_cast<const std::byte*>(b.data())};
  reduce_buffers(reinterpret_cast<std::byte*>(a.data()), inputs, static_cast<int64_t>(a.size()),
                 at::kDouble, ReduceOp::kSum);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], static_cast<double>(i) + 0.5);
}

using Kernel = void (*)(ReduceArguments);

// The kernels that this processor can run.
std::vector<std::pair<const char*, Kernel>> kernels() {
  std::vector<std::pair<const char*, Kernel>> result{{"baseline", isa_baseline::reduce}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    result.emplace_back("avx2", isa_avx2::reduce);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
      result.emplace_back("avx512", isa_avx512::reduce);
  }
#elif defined(__aarch64__)
  result.emplace_back("neon", isa_neon::reduce);
#endif
  return result;
}

// Every 16-bit pattern, infinities and subnormals included, plus others; against c10's conversions.
template <typename T>
void expect_every_pattern(ElementType type) {
  constexpr int kCount = 1 << 16;
  std::vector<T> a(kCount), b(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[i] = T(static_cast<uint16_t>(i), T::from_bits());
    b[i] = T(static_cast<uint16_t>(i * 40503 + 12345), T::from_bits());
  }
  for (const auto& [name, kernel] : kernels()) {
    for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kAvg, ReduceKind::kProduct}) {
      // Whole vectors and a rest; one and two outputs.
      std::vector<T> out(kCount, T(0)), second(kCount, T(0));
      unsigned char* outputs[] = {reinterpret_cast<unsigned char*>(out.data()),
                                  reinterpret_cast<unsigned char*>(second.data())};
      const unsigned char* inputs[] = {reinterpret_cast<const unsigned char*>(a.data()),
                                       reinterpret_cast<const unsigned char*>(b.data())};
      kernel({outputs, inputs, 2, 2, kCount - 3, 0, type, kind});
      for (int i = 0; i < kCount - 3; ++i) {
        const float x = static_cast<float>(a[i]), y = static_cast<float>(b[i]);
        const T expected = T(kind == ReduceKind::kProduct ? x * y
                             : kind == ReduceKind::kAvg   ? (x + y) / 2
                                                          : x + y);
        if (std::isnan(static_cast<float>(expected))) {
          ASSERT_TRUE(std::isnan(static_cast<float>(out[i]))) << name << " " << i;
        } else {
          ASSERT_EQ(out[i].x, expected.x) << name << " pattern " << i << ": " << x << " and " << y;
        }
        ASSERT_EQ(out[i].x, second[i].x) << name << " " << i;
      }
      ASSERT_EQ(out[kCount - 1].x, T(0).x) << name << " wrote past the end";
    }
  }
}

TEST(ReduceKernels, EveryInstructionSetRoundsEveryFloat16Alike) {
  expect_every_pattern<at::Half>(ElementType::kHalf);
}
TEST(ReduceKernels, EveryInstructionSetRoundsEveryBfloat16Alike) {
  expect_every_pattern<at::BFloat16>(ElementType::kBFloat16);
}

}  // namespace
}  // namespace lockstep::inline v0::reduce_kernels_test
