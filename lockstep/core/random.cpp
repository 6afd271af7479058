#include "lockstep/core/random.h"

#include <algorithm>
#include <bit>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

PythonRandom::PythonRandom(int64_t seed) {
  // The key is |seed| in 32-bit words, lowest first, without leading zero words.
  const uint64_t magnitude =
      seed < 0 ? 0 - static_cast<uint64_t>(seed) : static_cast<uint64_t>(seed);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(magnitude),
                                       static_cast<uint32_t>(magnitude >> 32)};
  const uint32_t key_words = key[1] != 0 ? 2 : 1;

  state_[0] = 19650218U;
  for (uint32_t i = 1; i < kWords; ++i) {
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
  uint32_t i = 1, j = 0;
  const auto advance = [&] {
    if (++i >= kWords) {
      state_[0] = state_[kWords - 1];
      i = 1;
    }
  };
  for (int k = 0; k < kWords; ++k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + key[j] + j;
    advance();
    j = (j + 1) % key_words;
  }
  for (int k = 0; k < kWords - 1; ++k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - i;
    advance();
  }
  state_[0] = 0x80000000U;
}

void PythonRandom::refill() {
  constexpr int kShift = 397;
  for (int k = 0; k < kWords; ++k) {
    const uint32_t y = (state_[k] & 0x80000000U) | (state_[(k + 1) % kWords] & 0x7fffffffU);
    state_[k] = state_[(k + kShift) % kWords] ^ (y >> 1) ^ ((y & 1U) ? 0x9908b0dfU : 0U);
  }
  position_ = 0;
}

uint32_t PythonRandom::next() {
  if (position_ == kWords) refill();
  uint32_t y = state_[position_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  y ^= y >> 18;
  return y;
}

double PythonRandom::random() {
  const uint32_t high = next() >> 5, low = next() >> 6;
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

uint64_t PythonRandom::getrandbits(int bits) {
  if (bits < 1 || bits > 64) {
    throw InvalidArgument("PythonRandom::getrandbits: " + std::to_string(bits) +
                          " bits; use 1 to 64");
  }
  if (bits <= 32) return next() >> (32 - bits);
  const uint64_t low = next();
  const uint64_t high = next() >> (64 - bits);
  return high << 32 | low;
}

uint64_t PythonRandom::below(uint64_t n) {
  if (n == 0) throw InvalidArgument("PythonRandom::below: n is 0; use at least 1");
  const int bits = static_cast<int>(std::bit_width(n));
  uint64_t value = getrandbits(bits);
  while (value >= n) value = getrandbits(bits);
  return value;
}

}  // namespace lockstep::inline v0
