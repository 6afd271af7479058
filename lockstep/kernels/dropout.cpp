#include "lockstep/kernels/dropout.h"

#include <algorithm>
#include <cmath>

#include "lockstep/kernels/random_word.h"

namespace lockstep::inline v0::kernels {

Dropout make_dropout(uint64_t seed, double probability) {
  Dropout dropout;
  dropout.seed = seed;
  dropout.threshold =
      static_cast<uint32_t>(std::clamp(std::lround(probability * 65536), 0L, 65535L));
  dropout.scale = static_cast<float>(65536.0 / (65536.0 - dropout.threshold));
  return dropout;
}

bool is_kept(const Dropout& dropout, int64_t row, int64_t column) {
  const auto number = static_cast<uint32_t>(column / 32 * 16 + column % 16);
  const uint32_t x = random_word(row_key(dropout.seed, row), number);
  return (column % 32 < 16 ? x & 0xffff : x >> 16) >= dropout.threshold;
}

}  // namespace lockstep::inline v0::kernels
