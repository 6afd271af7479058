// The decisions of the kernels' dropout, in plain code.
//
// A word of random_word.h decides two columns of 32 by its halves, each against a threshold of
// 65536.
#pragma once

#include <cstdint>

#include "lockstep/kernels/kernels.h"

namespace lockstep::inline v0::kernels {

// Makes dropout with `probability` in [0, 1), rounded to a multiple of 1/65536. The scale is the
// inverse of the resulting chance to be kept, so that the expectation is exact.
Dropout make_dropout(uint64_t seed, double probability);

// Whether an element is kept.
bool is_kept(const Dropout& dropout, int64_t row, int64_t column);

}  // namespace lockstep::inline v0::kernels
