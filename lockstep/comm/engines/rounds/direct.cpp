#include "lockstep/comm/engines/rounds/direct.h"

#include <algorithm>

#include "lockstep/comm/backend/reduce_kernels.h"
#include "lockstep/comm/engines/rounds/stream_copy.h"

namespace lockstep::inline v0::rounds {
namespace {

// Large enough that the system call's cost is negligible, small enough that a copied chunk is still
// in the second-level cache when it is added.
constexpr int64_t kCopyBytes = 256 * 1024;
// A chunk for several outputs is still in the second-level cache for the next one.
constexpr int64_t kPushBytes = 128 * 1024;

int64_t element_bytes(const Call& call) {
  return static_cast<int64_t>(c10::elementSize(call.dtype));
}

// Pointers to the same place in several buffers; the buffers must outlive the span. Uses the
// buffers' own pointers for their beginning, as in every small call.
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

// The part that the root pushes; the other ranks take the part before it.
Share pushed_share(const Call& call, size_t size) {
  return share_of(call.count * element_bytes(call), static_cast<int>(size) - 1,
                  static_cast<int>(size));
}

// Calls put(rank, at, bytes) for all ranks except the root, chunk by chunk.
template <typename Put>
void push_share(const Call& call, size_t size, const Put& put) {
  const Share share = pushed_share(call, size);
  for (int64_t at = share.begin; at < share.end; at += kPushBytes) {
    for (size_t step = 1; step < size; ++step) {
      const size_t r = (static_cast<size_t>(call.root) + step) % size;
      put(r, at, std::min(kPushBytes, share.end - at));
    }
  }
}

// The same `bytes` of all ranks at offset `at`, for a reduction: this rank's own, and copies of the
// peers' in `scratch`, which has as much room for each rank.
void read_all(std::span<const uint64_t> addresses, int rank, const std::byte* own, int64_t at,
              int64_t bytes, const PeerMemory& peer_memory, std::vector<std::byte>& scratch,
              std::vector<const std::byte*>& inputs) {
  const size_t room = scratch.size() / addresses.size();
  inputs.resize(addresses.size());
  for (size_t r = 0; r < addresses.size(); ++r) {
    inputs[r] = own + at;
    if (static_cast<int>(r) == rank) continue;
    std::byte* copy = scratch.data() + r * room;
    peer_memory.read(static_cast<int>(r), addresses[r] + static_cast<uint64_t>(at), copy, bytes);
    inputs[r] = copy;
  }
}

}  // namespace

void take_mapped(const Call& call, const Pieces& pieces, int rank,
                 std::span<const std::byte* const> offers) {
  if (is_reduction(call.op)) {
    const Piece piece = pieces.taken_from(0);  // the same for all sources
    if (piece.bytes == 0) return;
    const Moved<const std::byte> inputs(offers, piece.from);
    reduce_buffers(call.output + piece.to, inputs.get(), piece.bytes / element_bytes(call),
                   call.dtype, call.reduce);
    return;
  }
  const int size = static_cast<int>(offers.size());
  for (int step = 0; step < size; ++step) {
    const int r = (rank + step) % size;
    const Piece piece = pieces.taken_from(r);
    if (piece.bytes == 0) continue;
    copy(call.output + piece.to, offers[static_cast<size_t>(r)] + piece.from, piece.bytes);
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
                 std::span<const uint64_t> addresses, const PeerMemory& peer_memory,
                 std::vector<std::byte>& scratch) {
  if (!is_reduction(call.op)) {
    const int size = static_cast<int>(addresses.size());
    for (int step = 0; step < size; ++step) {
      const int r = (rank + step) % size;
      const Piece piece = pieces.taken_from(r);
      if (piece.bytes == 0) continue;
      if (r == rank)
        copy(call.output + piece.to, pieces.own() + piece.from, piece.bytes);
      else
        peer_memory.read(r, addresses[static_cast<size_t>(r)] + static_cast<uint64_t>(piece.from),
                         call.output + piece.to, piece.bytes);
    }
    return;
  }
  const Piece piece = pieces.taken_from(0);
  if (piece.bytes == 0) return;
  const int64_t chunk = std::min(piece.bytes, kCopyBytes);
  scratch.resize(static_cast<size_t>(chunk) * addresses.size());
  std::vector<const std::byte*> inputs;
  for (int64_t at = 0; at < piece.bytes; at += chunk) {
    const int64_t bytes = std::min(chunk, piece.bytes - at);
    read_all(addresses, rank, pieces.own(), piece.from + at, bytes, peer_memory, scratch, inputs);
    reduce_buffers(call.output + piece.to + at, inputs, bytes / element_bytes(call), call.dtype,
                   call.reduce);
  }
}

void all_reduce_copied(const Call& call, int rank, std::span<const uint64_t> addresses,
                       const PeerMemory& peer_memory, std::vector<std::byte>& scratch) {
  const int64_t element = element_bytes(call);
  const int size = static_cast<int>(addresses.size());
  const Share share = share_of(call.count * element, rank, size);
  if (share.bytes() == 0) return;
  const int64_t chunk = std::min(share.bytes(), kPushBytes);
  scratch.resize(static_cast<size_t>(chunk) * addresses.size());
  std::vector<const std::byte*> inputs;
  for (int64_t at = share.begin; at < share.end; at += chunk) {
    const int64_t bytes = std::min(chunk, share.end - at);
    read_all(addresses, rank, call.output, at, bytes, peer_memory, scratch, inputs);
    reduce_buffers(call.output + at, inputs, bytes / element, call.dtype, call.reduce);
    for (int step = 1; step < size; ++step) {
      const int r = (rank + step) % size;
      peer_memory.write(r, addresses[static_cast<size_t>(r)] + static_cast<uint64_t>(at),
                        call.output + at, bytes);
    }
  }
}

void push_copied(const Call& call, const Pieces& pieces, int rank,
                 std::span<const uint64_t> targets, const PeerMemory& peer_memory) {
  const int size = static_cast<int>(targets.size());
  int64_t longest = 0;
  for (int r = 0; r < size; ++r) longest = std::max(longest, pieces.given_to(r).bytes);
  // In chunks where all ranks take the same data.
  const int64_t chunk = call.op == Op::kAllGather ? kPushBytes : std::max<int64_t>(longest, 1);
  for (int64_t at = 0; at < longest; at += chunk) {
    for (int step = 0; step < size; ++step) {
      const int r = (rank + step) % size;
      const Piece piece = pieces.given_to(r);
      const int64_t bytes = std::min(chunk, piece.bytes - at);
      if (bytes <= 0) continue;
      const std::byte* from = pieces.own() + piece.from + at;
      if (r == rank)
        copy_part(call.output + piece.to + at, from, bytes, piece.bytes);
      else
        peer_memory.write(r, targets[static_cast<size_t>(r)] + static_cast<uint64_t>(piece.to + at),
                          from, bytes);
    }
  }
}

void broadcast_copied(const Call& call, int rank, std::span<const uint64_t> addresses,
                      std::span<const uint64_t> targets, const PeerMemory& peer_memory) {
  if (rank == call.root) {
    push_share(call, targets.size(), [&](size_t r, int64_t at, int64_t bytes) {
      peer_memory.write(static_cast<int>(r), targets[r] + static_cast<uint64_t>(at),
                        call.output + at, bytes);
    });
  } else if (const int64_t bytes = pushed_share(call, targets.size()).begin; bytes > 0) {
    peer_memory.read(call.root, addresses[static_cast<size_t>(call.root)], call.output, bytes);
  }
}

void broadcast_mapped(const Call& call, int rank, std::span<std::byte* const> buffers) {
  const int64_t whole = call.count * element_bytes(call);
  if (rank == call.root) {
    push_share(call, buffers.size(), [&](size_t r, int64_t at, int64_t bytes) {
      copy_part(buffers[r] + at, call.output + at, bytes, whole);
    });
  } else {
    copy_part(call.output, buffers[static_cast<size_t>(call.root)],
              pushed_share(call, buffers.size()).begin, whole);
  }
}

}  // namespace lockstep::inline v0::rounds
