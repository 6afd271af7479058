// Copies between ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::inline v0::rounds {

// From this size on a copy does not fit the caches, and reading the destination first, as ordinary
// stores make the processor do, costs as much as writing it. It is far below memcpy()'s own
// threshold where a virtual machine shows it the last-level cache of the whole processor.
inline constexpr int64_t kStreamFrom = 24 * 1024 * 1024;

// memcpy() of `bytes` (>= 0), with streaming stores if the copy is part of a transfer of `whole` >=
// kStreamFrom bytes.
void copy_part(std::byte* to, const std::byte* from, int64_t bytes, int64_t whole);
inline void copy(std::byte* to, const std::byte* from, int64_t bytes) {
  copy_part(to, from, bytes, bytes);
}

}  // namespace lockstep::inline v0::rounds
