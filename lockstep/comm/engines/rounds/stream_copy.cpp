#include "lockstep/comm/engines/rounds/stream_copy.h"

#include <cstring>

#include "lockstep/core/stream_copy.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lockstep::inline v0::rounds {
namespace {

#if defined(__SSE2__)
constexpr int64_t kLineBytes = 64;

// From this size on glibc's memcpy() uses `rep movsb` on many processors. Zen 3 and 4 are up to ten
// times slower at it where source and destination have the same offset in their pages
// (https://sourceware.org/PR30994), as a chunk and the slot that mirrors it may have.
constexpr int64_t kVectorsFrom = 2048;

// The number of bytes from `to` to the next cache line boundary.
int64_t head_of(const std::byte* to) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLineBytes);
  return misaligned == 0 ? 0 : kLineBytes - misaligned;
}

// `to` must be aligned.
void copy_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source);
  const __m128i b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2);
  const __m128i d = _mm_loadu_si128(source + 3);
  _mm_store_si128(target, a);
  _mm_store_si128(target + 1, b);
  _mm_store_si128(target + 2, c);
  _mm_store_si128(target + 3, d);
}

void copy_vectors(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, kLineBytes);  // the first line, aligned or not
  int64_t at = head_of(to);
  for (; at + kLineBytes <= bytes; at += kLineBytes) copy_line(to + at, from + at);
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}
#endif

}  // namespace

void copy_part(std::byte* to, const std::byte* from, int64_t bytes, int64_t whole) {
  if (bytes == 0 || to == from) return;
  if (whole >= kStreamFrom) {
    stream_copy(to, from, static_cast<size_t>(bytes));
    stream_fence();  // orders the copy before later releases
    return;
  }
#if defined(__SSE2__)
  if (bytes >= kVectorsFrom) return copy_vectors(to, from, bytes);
#endif
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace lockstep::inline v0::rounds
