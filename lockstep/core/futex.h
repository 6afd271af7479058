// A word in memory that processes share, on which one sleeps and another wakes it: futex(2).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::inline v0 {

// Sleeps while the word has the value `seen`, until it is woken, or for `longest`; may return
// early. The caller looks again at what it waits for.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds longest);

// Wakes all that sleep on the word, in every process that has it mapped.
void futex_wake_all(std::atomic<uint32_t>& word);

}  // namespace lockstep::inline v0
