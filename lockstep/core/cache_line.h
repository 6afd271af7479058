// How far apart two words must lie that different cores write, so that neither waits for the other.
#pragma once

#include <cstddef>

namespace lockstep::inline v0 {

// Two cache lines of 64 bytes, which x86 and most of ARM fetch in pairs, or one of 128 (Apple).
// Fujitsu's A64FX has 256: slower there, and right all the same. Not
// std::hardware_destructive_interference_size: it follows the compiler's options, and processes
// that share memory must agree.
inline constexpr size_t kLinePair = 128;

}  // namespace lockstep::inline v0
