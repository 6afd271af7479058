#include "lockstep/comm/rounds/direct.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/reduce_kernels.h"

namespace lockstep::rounds {
namespace {

// Large enough to drown the system call, small enough that what was copied is still in the second
// level cache when it is added.
constexpr int64_t kCopyBytes = 256 * 1024;
constexpr int64_t kShareAlignment = 64;  // a cache line belongs to one share

struct Share {
  int64_t begin;  // bytes
  int64_t end;
};

Share share_of(int64_t bytes, int rank, int size) {
  const int64_t lines = (bytes + kShareAlignment - 1) / kShareAlignment;
  const auto bound = [&](int r) { return std::min(bytes, lines * r / size * kShareAlignment); };
  return {bound(rank), rank + 1 == size ? bytes : bound(rank + 1)};
}

int64_t element_bytes(const Call& call) {
  return static_cast<int64_t>(c10::elementSize(call.dtype));
}

// Pointers to the same place in several buffers; must outlive the span. The buffers' own pointers
// where that is their beginning, as in every small call.
template <typename T>
class Moved {
 public:
  Moved(std::span<T* const> buffers, int64_t offset) : at_(buffers) {
    if (offset == 0) return;
    for (T* buffer : buffers) pointers_.push_back(buffer + offset);
    at_ = pointers_;
  }
  std::span<T* const> get() const { return at_; }

 private:
  std::span<T* const> at_;
  std::vector<T*> pointers_;
};

}  // namespace

void take_mapped(const Call& call, const Pieces& pieces, std::span<const std::byte* const> offers) {
  if (is_reduction(call.op)) {
    const Piece piece = pieces.taken_from(0);  // the same of all sources
    if (piece.bytes == 0) return;
    const Moved<const std::byte> inputs(offers, piece.from);
    reduce_buffers(call.output + piece.to, inputs.get(), piece.bytes / element_bytes(call),
                   call.dtype, call.reduce);
    return;
  }
  for (size_t r = 0; r < offers.size(); ++r) {
    const Piece piece = pieces.taken_from(static_cast<int>(r));
    if (piece.bytes == 0) continue;
    std::memcpy(call.output + piece.to, offers[r] + piece.from, static_cast<size_t>(piece.bytes));
  }
}

void all_reduce_mapped(const Call& call, int rank, std::span<std::byte* const> buffers) {
  const int64_t element = element_bytes(call);
  const Share share = share_of(call.count * element, rank, static_cast<int>(buffers.size()));
  if (share.begin == share.end) return;
  const Moved<std::byte> at(buffers, share.begin);
  reduce_buffers(at.get(), {at.get().data(), at.get().size()}, (share.end - share.begin) / element,
                 call.dtype, call.reduce);
}

void take_copied(const Call& call, const Pieces& pieces, int rank,
                 std::span<const uint64_t> addresses, const Reach& reach,
                 std::vector<std::byte>& scratch) {
  if (!is_reduction(call.op)) {
    for (size_t r = 0; r < addresses.size(); ++r) {
      const Piece piece = pieces.taken_from(static_cast<int>(r));
      if (piece.bytes == 0) continue;
      if (static_cast<int>(r) == rank)
        std::memcpy(call.output + piece.to, pieces.own() + piece.from,
                    static_cast<size_t>(piece.bytes));
      else
        reach.read(static_cast<int>(r), addresses[r] + static_cast<uint64_t>(piece.from),
                   call.output + piece.to, piece.bytes);
    }
    return;
  }
  const Piece piece = pieces.taken_from(0);
  if (piece.bytes == 0) return;
  const int64_t chunk = std::min(piece.bytes, kCopyBytes);
  scratch.resize(static_cast<size_t>(chunk) * addresses.size());
  std::vector<const std::byte*> inputs(addresses.size());
  for (int64_t at = 0; at < piece.bytes; at += chunk) {
    const int64_t bytes = std::min(chunk, piece.bytes - at);
    for (size_t r = 0; r < addresses.size(); ++r) {
      if (static_cast<int>(r) == rank) {
        inputs[r] = pieces.own() + piece.from + at;
        continue;
      }
      std::byte* copy = scratch.data() + static_cast<int64_t>(r) * chunk;
      reach.read(static_cast<int>(r), addresses[r] + static_cast<uint64_t>(piece.from + at), copy,
                 bytes);
      inputs[r] = copy;
    }
    reduce_buffers(call.output + piece.to + at, inputs, bytes / element_bytes(call), call.dtype,
                   call.reduce);
  }
}

void all_reduce_copied(const Call& call, int rank, std::span<const uint64_t> addresses,
                       const Reach& reach, std::vector<std::byte>& scratch) {
  const int64_t element = element_bytes(call);
  const Share share = share_of(call.count * element, rank, static_cast<int>(addresses.size()));
  const int64_t chunk = std::min(share.end - share.begin, kCopyBytes);
  if (chunk == 0) return;
  scratch.resize(static_cast<size_t>(chunk) * addresses.size());
  std::vector<const std::byte*> inputs(addresses.size());
  for (int64_t at = share.begin; at < share.end; at += chunk) {
    const int64_t bytes = std::min(chunk, share.end - at);
    std::byte* own = call.output + at;
    for (size_t r = 0; r < addresses.size(); ++r) {
      if (static_cast<int>(r) == rank) {
        inputs[r] = own;
        continue;
      }
      std::byte* copy = scratch.data() + static_cast<int64_t>(r) * chunk;
      reach.read(static_cast<int>(r), addresses[r] + static_cast<uint64_t>(at), copy, bytes);
      inputs[r] = copy;
    }
    reduce_buffers(own, inputs, bytes / element, call.dtype, call.reduce);
    for (size_t r = 0; r < addresses.size(); ++r) {
      if (static_cast<int>(r) != rank)
        reach.write(static_cast<int>(r), addresses[r] + static_cast<uint64_t>(at), own, bytes);
    }
  }
}

}  // namespace lockstep::rounds
