// A cycle counter, which measures the cost of a call without asking the system for the time.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <x86intrin.h>
#endif

namespace lockstep::inline v0 {

// Ticks of a counter that runs at a constant rate and is the same on all cores of a host: the
// invariant time-stamp counter on x86, the generic timer on 64-bit ARM (24 MHz to 1 GHz: on some
// processors a short call takes one tick or none), nanoseconds elsewhere. Not ordered with other
// instructions.
inline uint64_t ticks() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// About so many ticks pass in `time`: for thresholds, not for measurements. x86 does not say how
// fast its counter is; 2.5 GHz stands for all.
inline uint64_t about_ticks(std::chrono::microseconds time) noexcept {
  const auto microseconds = static_cast<uint64_t>(time.count());
#if defined(__x86_64__) || defined(__i386__)
  return microseconds * 2'500;
#elif defined(__aarch64__)
  uint64_t a_second;
  asm("mrs %0, cntfrq_el0" : "=r"(a_second));
  return microseconds * a_second / 1'000'000;
#else
  return microseconds * 1'000;
#endif
}

// Lets the other hyperthread run, and saves power in a loop that waits. On ARM `isb`: `yield` does
// nothing on processors without hyperthreads, which are most, and the loop would ask for the peer's
// cache line every few cycles.
inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" : : : "memory");
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
