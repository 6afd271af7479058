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

// Bytes from `to` to the next line that begins in it.
int64_t head_of(const std::byte* to) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % kLineBytes);
  return misaligned == 0 ? 0 : kLineBytes - misaligned;
}

// `to` is aligned.
template <bool kStreaming>
void copy_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const auto store = [](__m128i* at, __m128i value) {
    if constexpr (kStreaming)
      _mm_stream_si128(at, value);
    else
      _mm_store_si128(at, value);
  };
  const __m128i a = _mm_loadu_si128(source);
  const __m128i b = _mm_loadu_si128(source + 1);
  const __m128i c = _mm_loadu_si128(source + 2);
  const __m128i d = _mm_loadu_si128(source + 3);
  store(target, a);
  store(target + 1, b);
  store(target + 2, c);
  store(target + 3, d);
}

void copy_vectors(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, kLineBytes);  // the first line, aligned or not
  int64_t at = head_of(to);
  for (; at + kLineBytes <= bytes; at += kLineBytes) copy_line<false>(to + at, from + at);
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
}

void stream(std::byte* to, const std::byte* from, int64_t bytes) {
  const int64_t head = std::min(bytes, head_of(to));
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kPages * kPage <= bytes; at += kPages * kPage) {
    for (int64_t line = 0; line < kPage; line += kLineBytes) {
      for (int64_t page = 0; page < kPages; ++page)
        copy_line<true>(to + at + page * kPage + line, from + at + page * kPage + line);
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
