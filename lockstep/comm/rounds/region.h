// Region: the memory that the ranks of one host share, and its layout. The ranks may be threads
// (local/) or processes (shm/).
//
//   header | rank state 0 .. N-1 | slots of rank 0 .. N-1 | channel (src 0, dst 0), (0, 1), ..
//   (N-1, N-1)
//
// Collectives go through slots: in each round a rank writes one of its own kSlots slots and reads
// those of its peers. Messages go through channels: one byte ring for every ordered pair of ranks.
// Everything is written by one rank only, but for the abort record; what a counter covers is
// published by a release store and read after an acquire load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lockstep::rounds {

inline constexpr int kSlots = 4;  // rounds that a rank may be ahead of the slowest reader, plus one
inline constexpr size_t kLine = 128;

// What a rank says about its call in the first bytes of a slot. Fixed size, no pointers.
struct CallHeader {
  uint64_t sequence = 0;     // of the collective
  uint64_t fingerprint = 0;  // equal on all ranks that call the same operation in the same way
  int64_t rounds = 0;        // that this rank needs for what it sends
  int64_t round = 0;         // within the operation
  uint64_t history = 0;      // a hash of all earlier fingerprints
  char text[160] = {};       // describe(call), NUL-terminated
  char previous[160] = {};   // the same of the call before
};

// How the group was broken, by whoever came first.
enum class AbortKind : uint32_t { kNone, kPending, kTimeout, kPeerLost, kMismatch, kOther };

struct RegionHeader {
  uint64_t magic;
  int32_t size;
  uint32_t slot_bytes;
  uint32_t channel_bytes;
  alignas(kLine)
      std::atomic<uint32_t> abort_kind;  // AbortKind; the record below is valid from kTimeout on
  int32_t abort_rank;                    // who broke the group
  int32_t lost_rank;                     // for kPeerLost
  char abort_text[1024];
};

struct RankState {
  alignas(kLine) std::atomic<uint64_t> published;  // rounds whose slot is written
  alignas(kLine) std::atomic<uint64_t> consumed;   // rounds that this rank has read
  alignas(kLine) std::atomic<uint32_t> departed;   // this rank's end was destroyed
  std::atomic<int32_t> pid;
};

struct ChannelState {
  alignas(kLine) std::atomic<uint64_t> written;  // bytes put in by the sender
  alignas(kLine) std::atomic<uint64_t> read;     // bytes taken out by the receiver
};

struct RegionShape {
  int size = 1;
  uint32_t slot_bytes = 256 * 1024;    // payload of a slot; a multiple of 128
  uint32_t channel_bytes = 64 * 1024;  // of each ordered pair; a multiple of 128
};
// A shape whose memory stays moderate for `size` ranks.
RegionShape default_shape(int size);

// A view of a mapped region; does not own the memory.
class Region {
 public:
  static size_t bytes(const RegionShape& shape);
  // `memory` is zeroed (fresh) or was initialised with the same shape by another rank; aligned to
  // 128.
  Region(std::byte* memory, const RegionShape& shape);
  // Writes the header. Once, by the rank that made the memory, before any other uses it.
  void initialise();
  // Throws Mismatch if the header is not that of `shape`.
  void verify() const;

  const RegionShape& shape() const { return shape_; }
  RegionHeader& header() const { return *reinterpret_cast<RegionHeader*>(memory_); }
  RankState& rank(int rank) const;
  CallHeader& slot_header(int rank, uint64_t round) const;
  std::byte* slot_payload(int rank, uint64_t round) const;
  ChannelState& channel(int src, int dst) const;
  std::byte* channel_ring(int src, int dst) const;

 private:
  std::byte* memory_;
  RegionShape shape_;
};

}  // namespace lockstep::rounds
