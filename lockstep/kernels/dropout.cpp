#include "lockstep/kernels/dropout.h"

#include <algorithm>
#include <cmath>

namespace lockstep::kernels {

Dropout make_dropout(uint64_t seed, double probability) {
  Dropout dropout;
  dropout.seed = seed;
  dropout.threshold =
      static_cast<uint32_t>(std::clamp(std::lround(probability * 65536), 0L, 65535L));
  dropout.scale = static_cast<float>(65536.0 / (65536.0 - dropout.threshold));
  return dropout;
}

bool is_kept(const Dropout& dropout, int64_t row, int64_t column) {
  uint64_t key = dropout.seed + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  key ^= key >> 31;
  auto x = static_cast<uint32_t>(column / 32 * 16 + column % 16) + static_cast<uint32_t>(key);
  x = (x ^ (x >> 17)) * 0xed5ad4bb;
  x ^= static_cast<uint32_t>(key >> 32);
  x = (x ^ (x >> 11)) * 0xac4c1b51;
  x = (x ^ (x >> 15)) * 0x31848bab;
  x ^= x >> 14;
  return (column % 32 < 16 ? x & 0xffff : x >> 16) >= dropout.threshold;
}

}  // namespace lockstep::kernels
