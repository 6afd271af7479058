// A cycle counter: what a call costs is measured without asking the system for the time.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <x86intrin.h>
#else
#include <chrono>
#endif

namespace lockstep {

// Ticks of a counter that runs at a constant rate and is the same on all cores of a host (the
// invariant time-stamp counter on x86, nanoseconds elsewhere). Not ordered with other instructions.
inline uint64_t ticks() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Lets the other hyperthread go on, and saves power in a loop that waits.
inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace lockstep
