// What the kernels' dropout decides, in plain code.
//
// A row's key is the seed plus row times 2^64 / golden ratio, mixed by splitmix64's finalizer
// (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014; Vigna's
// constants). A word of the row, its number added to the key's lower half, goes through the three
// rounds of triple32 (Wellons, "Prospecting for hash functions", 2018), the key's upper half coming
// in after the first: so rows, and seeds that are close to each other, are not shifts of one
// sequence. A word decides two columns of 32 by its halves, each against a threshold of 65536.
#pragma once

#include <cstdint>

#include "lockstep/kernels/kernels.h"

namespace lockstep::kernels {

// Dropout with `probability` in [0, 1), rounded to a multiple of 1/65536; the scale is the inverse
// of the chance to be kept that results, so that the expectation is exact.
Dropout make_dropout(uint64_t seed, double probability);

// Whether an element is kept.
bool is_kept(const Dropout& dropout, int64_t row, int64_t column);

}  // namespace lockstep::kernels
