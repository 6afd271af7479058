#include "lockstep/comm/engines/rounds/ll_buffers.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/ticks.h"

namespace lockstep::inline v0::rounds {
namespace {

// The exchange's number distinguishes fresh lines from old ones, and the key's bits those of
// another call.
constexpr int kKeyBits = 24;
constexpr uint64_t kKeyMask = (uint64_t{1} << kKeyBits) - 1;

int64_t line_count(int64_t bytes) {
  return std::max<int64_t>(1, (bytes + kLinePayload - 1) / kLinePayload);
}

}  // namespace

void LlBuffers::write(uint64_t key, const std::byte* payload, int64_t bytes) {
  flag_ = ((exchange_ + 1) << kKeyBits) | ((key ^ (key >> kKeyBits) ^ (key >> 48)) & kKeyMask);
  Line* lines = region_.lines(rank_, exchange_);
  const int64_t last = line_count(bytes) - 1;
  for (int64_t i = 0; i < last; ++i) {
    std::memcpy(lines[i].payload, payload + i * kLinePayload, kLinePayload);
    lines[i].flag.store(flag_, std::memory_order_release);
  }
  if (bytes > 0)
    std::memcpy(lines[last].payload, payload + last * kLinePayload,
                static_cast<size_t>(bytes - last * kLinePayload));
  lines[last].flag.store(flag_, std::memory_order_release);
  written_[exchange_ % 2] = last + 1;
}

void LlBuffers::end() {
  ++exchange_;
  // Every rank has begun the exchange that ends here, so no rank reads the lines of the one before
  // any more, and the next exchange reuses them.
  const Line* lines = region_.lines(rank_, exchange_);
  for (int64_t i = 0; i < written_[exchange_ % 2]; ++i) prefetch_to_write(lines + i);
}

bool LlBuffers::ready(int rank, int64_t bytes) const {
  const Line* lines = region_.lines(rank, exchange_);
  for (int64_t i = line_count(bytes) - 1; i >= 0; --i) {
    if (lines[i].flag.load(std::memory_order_acquire) != flag_) return false;
  }
  return true;
}

const std::byte* LlBuffers::read(int rank, int64_t bytes, std::byte* scratch) const {
  const Line* lines = region_.lines(rank, exchange_);
  if (bytes <= kLinePayload) return lines[0].payload;
  for (int64_t at = 0, i = 0; at < bytes; at += kLinePayload, ++i) {
    std::memcpy(scratch + at, lines[i].payload,
                static_cast<size_t>(std::min(kLinePayload, bytes - at)));
  }
  return scratch;
}

}  // namespace lockstep::inline v0::rounds
