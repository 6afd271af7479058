// PythonRandom: CPython's random.Random, number for number.
//
// Data splits and shuffles of a Python program with `random.Random(seed)` are the same here. The
// generator is MT19937 seeded by init_by_array (Matsumoto and Nishimura, 2002); the methods follow
// CPython 3.11's Lib/random.py and Modules/_randommodule.c, whose results have been stable since
// 3.2. Not for secrets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// A value type: a copy continues the same sequence independently.
// Thread-safety: one thread at a time.
class LOCKSTEP_API PythonRandom {
 public:
  // random.Random(seed). As in CPython, the sign is ignored.
  explicit PythonRandom(int64_t seed);

  // random.random(): in [0, 1), a multiple of 2^-53.
  double random();

  // random.getrandbits(bits), bits in 1..64.
  // Throws: InvalidArgument otherwise.
  uint64_t getrandbits(int bits);

  // random.randrange(n): in 0..n-1, unbiased.
  // Throws: InvalidArgument for n = 0.
  uint64_t below(uint64_t n);

  // random.shuffle(items).
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i-- > 1;) {
      using std::swap;
      swap(items[i], items[below(i + 1)]);
    }
  }

 private:
  static constexpr int kWords = 624;

  uint32_t next();
  void refill();

  std::array<uint32_t, kWords> state_;
  int position_ = kWords;
};

}  // namespace lockstep::inline v0
