#include "lockstep/testing/fake_cuda/internal/nccl_arithmetic.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lockstep/core/check.h"

namespace lockstep::inline v0::testing::fake {
namespace {

enum NcclReduction : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4 };

// Calls f(T{}) with the type that NCCL means by the number.
template <typename F>
void with_nccl_type(int dtype, const F& f) {
  switch (dtype) {
    case 0:
      return f(int8_t{});
    case 1:
      return f(uint8_t{});
    case 2:
      return f(int32_t{});
    case 3:
      return f(uint32_t{});
    case 4:
      return f(int64_t{});
    case 5:
      return f(uint64_t{});
    case 6:
      return f(c10::Half{});
    case 7:
      return f(float{});
    case 8:
      return f(double{});
    case 9:
      return f(c10::BFloat16{});
    default:
      return;
  }
}

template <typename T>
T combine(int op, T a, T b) {
  switch (op) {
    case kProduct:
      return static_cast<T>(a * b);
    case kMax:
      return std::max(a, b);
    case kMin:
      return std::min(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

}  // namespace

size_t nccl_item_size(int dtype) {
  size_t size = 0;
  with_nccl_type(dtype, [&](auto sample) { size = sizeof sample; });
  return size;
}

void nccl_reduce(int dtype, int op, const std::vector<const std::byte*>& inputs, std::byte* output,
                 size_t count) {
  LOCKSTEP_CHECK(!inputs.empty(), "a communicator has ranks");
  with_nccl_type(dtype, [&](auto sample) {
    using T = decltype(sample);
    using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
    for (size_t i = 0; i < count; ++i) {
      auto value = static_cast<Wide>(reinterpret_cast<const T*>(inputs[0])[i]);
      for (size_t r = 1; r < inputs.size(); ++r)
        value =
            combine<Wide>(op, value, static_cast<Wide>(reinterpret_cast<const T*>(inputs[r])[i]));
      if (op == kAverage) value = static_cast<Wide>(value / static_cast<Wide>(inputs.size()));
      reinterpret_cast<T*>(output)[i] = static_cast<T>(value);
    }
  });
}

}  // namespace lockstep::inline v0::testing::fake
