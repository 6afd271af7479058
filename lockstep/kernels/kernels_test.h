// The common part of the kernels' tests: every instruction set, numbers, and bfloat16 by hand.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "lockstep/kernels/kernels.h"

namespace lockstep::inline v0::kernels::testing {

inline std::vector<const Kernels*> every() {
  const KernelList list = all_kernels();
  return {list.first, list.first + list.count};
}

inline std::vector<float> numbers(int64_t count, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> result(static_cast<size_t>(count));
  for (float& x : result) x = normal(random);
  return result;
}

inline float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

inline std::vector<uint16_t> to_bf16(const std::vector<float>& numbers) {
  std::vector<uint16_t> result(numbers.size());
  all_kernels().first[0]->round(numbers.data(), result.data(),
                                static_cast<int64_t>(numbers.size()));
  return result;
}

inline std::vector<float> from_bf16(const std::vector<uint16_t>& bits) {
  std::vector<float> result;
  for (const uint16_t b : bits) result.push_back(from_bf16(b));
  return result;
}

// Expects every element within `tolerance` of the other, relative to values larger than 1.
template <typename A, typename B>
void expect_close(const A& actual, const B& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i],
                tolerance * std::max(1.0, std::abs(static_cast<double>(expected[i]))))
        << what << ", element " << i;
}

}  // namespace lockstep::inline v0::kernels::testing
