// A cycle counter, which measures the cost of a call without asking the system for the time.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <x86intrin.h>
#else
#include <chrono>
#endif

namespace lockstep::inline v0 {

// Ticks of a counter that runs at a constant rate and is the same on all cores of a host (the
// invariant time-stamp counter on x86, nanoseconds elsewhere). Not ordered with other instructions.
inline uint64_t ticks() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Lets the other hyperthread run, and saves power in a loop that waits.
inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Fetches a cache line that will be written soon, so that the store need not ask the other cores
// for it.
inline void prefetch_to_write(const void* line) noexcept {
#if defined(__x86_64__)
  // The builtin omits the "to write" unless the compiler may assume a newer processor; older ones
  // treat the instruction as a no-op.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace lockstep::inline v0
