#include "lockstep/kernels/random_word.h"

namespace lockstep::inline v0::kernels {

uint64_t row_key(uint64_t seed, int64_t row) {
  uint64_t key = seed + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}

uint32_t random_word(uint64_t row_key, uint32_t number) {
  uint32_t x = number + static_cast<uint32_t>(row_key);
  x = (x ^ (x >> 17)) * 0xed5ad4bb;
  x ^= static_cast<uint32_t>(row_key >> 32);
  x = (x ^ (x >> 11)) * 0xac4c1b51;
  x = (x ^ (x >> 15)) * 0x31848bab;
  return x ^ (x >> 14);
}

}  // namespace lockstep::inline v0::kernels
