// Normally distributed numbers without a state: number i of a seed does not depend on how many
// numbers are drawn, on how many threads, or with which instruction set.
//
// Numbers come in rows of kNormalRow, 32 at a time. Number c of a row and number c + 16, c % 32 <
// 16, are computed from the row's random words (random_word.h) c and c + 16 by Box and Muller's
// method ("A note on the generation of random normal deviates", 1958). The first word's upper 24
// bits give the radius, of at most 5.9 standard deviations. The second's lower 24 bits give the
// angle in an eighth of the circle, and its upper three bits select the eighth.
#pragma once

#include <cstdint>

namespace lockstep::inline v0::kernels {

// Number `index` >= 0 of `seed`, in double.
double normal_number(uint64_t seed, int64_t index);

// Sets to[i] = deviation * number i, for [0, count), on up to `threads` of OpenMP's threads.
void fill_normal(float* to, int64_t count, uint64_t seed, float deviation, int threads);
// Sets to[i] = deviation * number first + i: a part of the same numbers.
void fill_normal_part(float* to, int64_t first, int64_t count, uint64_t seed, float deviation,
                      int threads);

}  // namespace lockstep::inline v0::kernels
