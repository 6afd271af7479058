// SplitMix: random numbers that depend only on a few counters.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::inline v0::data {

// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): a
// hash of (seed, stream, counter) starts each sequence. The same numbers on every machine.
class SplitMix {
 public:
  SplitMix(uint64_t seed, uint64_t stream, uint64_t counter) : state_(seed) {
    state_ = next() ^ stream;
    state_ = next() ^ counter;
  }
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  // 0..n-1; the bias of 2^-32 does not matter here.
  size_t below(size_t n) { return static_cast<size_t>(((next() >> 32) * n) >> 32); }

 private:
  uint64_t state_;
};

}  // namespace lockstep::inline v0::data
