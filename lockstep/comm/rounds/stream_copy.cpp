#include "lockstep/comm/rounds/stream_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lockstep::rounds {
namespace {

#if defined(__SSE2__)
constexpr int64_t kLineBytes = 64;
constexpr int64_t kPage = 4096;
constexpr int64_t kPages = 4;  // written side by side: memory's banks work in parallel

// From here on glibc's memcpy() takes `rep movsb` on many processors. Zen 3 and 4 are up to ten
// times slower at it where both ends lie alike in their pages (https://sourceware.org/PR30994), as
// a chunk and the slot that mirrors it may well do.
constexpr int64_t kVectorsFrom = 2048;

void copy_vectors(std::byte* to, const std::byte* from, int64_t bytes) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLineBytes);
  const int64_t head = misaligned == 0 ? 0 : kLineBytes - misaligned;
  std::memcpy(to, from, kLineBytes);  // the first line, aligned or not
  int64_t at = head;
  for (; at + kLineBytes <= bytes; at += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_store_si128(target, a);
    _mm_store_si128(target + 1, b);
    _mm_store_si128(target + 2, c);
    _mm_store_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}

void stream_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(source);
  const __m128i b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2);
  const __m128i d = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, a);
  _mm_stream_si128(target + 1, b);
  _mm_stream_si128(target + 2, c);
  _mm_stream_si128(target + 3, d);
}

void stream(std::byte* to, const std::byte* from, int64_t bytes) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLineBytes);
  const int64_t head = std::min(bytes, misaligned == 0 ? 0 : kLineBytes - misaligned);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kPages * kPage <= bytes; at += kPages * kPage) {
    for (int64_t line = 0; line < kPage; line += kLineBytes) {
      for (int64_t page = 0; page < kPages; ++page)
        stream_line(to + at + page * kPage + line, from + at + page * kPage + line);
    }
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
  _mm_sfence();  // streaming stores are not ordered by later releases
}
#endif

}  // namespace

void copy_part(std::byte* to, const std::byte* from, int64_t bytes, int64_t whole) {
  if (bytes == 0 || to == from) return;
#if defined(__SSE2__)
  if (whole >= kStreamFrom) return stream(to, from, bytes);
  if (bytes >= kVectorsFrom) return copy_vectors(to, from, bytes);
#else
  (void)whole;
#endif
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace lockstep::rounds
