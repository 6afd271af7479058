// The random numbers that kernels draw: a hash of (seed, row, number), in plain code.
//
// A row's key is the seed plus row times 2^64 / golden ratio, mixed by splitmix64's finalizer
// (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014; Vigna's
// constants). A word's number is added to the key's lower half and goes through the three rounds of
// triple32 (Wellons, "Prospecting for hash functions", 2018); the key's upper half is added after
// the first round. Rows, and seeds that are close to each other, are therefore not shifts of one
// sequence.
#pragma once

#include <cstdint>

namespace lockstep::inline v0::kernels {

uint64_t row_key(uint64_t seed, int64_t row);
uint32_t random_word(uint64_t row_key, uint32_t number);

}  // namespace lockstep::inline v0::kernels
