#include "lockstep/core/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lockstep::inline v0 {

#if defined(__SSE2__)
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;
constexpr size_t kPages = 4;  // written in parallel, because memory banks work in parallel

// `to` must be aligned.
void stream_line(char* to, const char* from) {
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

}  // namespace

void stream_copy(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t head =
      std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine);
  std::memcpy(target, source, head);
  size_t at = head;
  for (; at + kPages * kPage <= bytes; at += kPages * kPage) {
    for (size_t line = 0; line < kPage; line += kLine) {
      for (size_t page = 0; page < kPages; ++page)
        stream_line(target + at + page * kPage + line, source + at + page * kPage + line);
    }
  }
  for (; at + kLine <= bytes; at += kLine) stream_line(target + at, source + at);
  std::memcpy(target + at, source + at, bytes - at);
}

void stream_fence() {
  _mm_sfence();
}

#else

void stream_copy(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

void stream_fence() {}

#endif

}  // namespace lockstep::inline v0
