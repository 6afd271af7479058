// Region: the memory that the ranks of one host share, and its layout. The ranks may be threads
// (local/) or processes (shm/).
//
//   header | rank state 0 .. N-1 | descriptors of rank 0 .. N-1 | lines (2 parities x N ranks)
//   | slots of rank 0 .. N-1 | channel (src 0, dst 0), (0, 1), .. (N-1, N-1)
//
// In every collective a rank first posts its call descriptor. Its data then goes through LL buffers
// (up to kLineCapacity bytes), straight from the peers' memory (peer_memory.h), or in rounds
// through its kSlots slots. Messages go through channels: one byte ring for every ordered pair of
// ranks. Each protocol has counters of its own. Every field is written by one rank only, except the
// report of a failure. The data that a counter covers is published by a release store and read
// after an acquire load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/core/cache_line.h"
#include "lockstep/trace/call_record.h"

namespace lockstep::inline v0::rounds {

inline constexpr int kSlots = 4;  // staged rounds that a rank may be ahead of the slowest reader
inline constexpr int kDescriptors = 64;  // calls that a rank may be ahead of the slowest rank
inline constexpr size_t kLine = kLinePair;
inline constexpr int kLinesARank = 56;
inline constexpr int64_t kLinePayload = 56;
inline constexpr int64_t kLineCapacity = kLinesARank * kLinePayload;  // 3136 bytes

// The place of the data that a rank contributes to a call.
enum class Memory : uint32_t {
  kStaged,   // only in its slots
  kMapped,   // where peers can load and store it: `offset` in window `window`
  kPrivate,  // at `address` of its own address space, which peers can copy from and to
};

// A rank's description of a call, before it moves any data. Peers read only the first 64 bytes when
// nothing is wrong.
struct CallDescriptor {
  // The call's number on this region, from 1; stored last.
  alignas(kLine) std::atomic<uint64_t> number;
  uint64_t fingerprint;  // equal on all ranks that call the same operation in the same way
  uint64_t history;      // a hash of all earlier fingerprints
  uint64_t offset;
  uint64_t address;
  // Address of this rank's output for peers to write to, in its address space; or 0.
  uint64_t target;
  int64_t rounds;  // rounds that this rank needs to stage the data that it sends
  uint32_t window;
  Memory memory;
  trace::CallRecord record;
};

// A cache line that carries data and a flag that says so. `flag` is stored last.
struct Line {
  alignas(64) std::byte payload[kLinePayload];
  std::atomic<uint64_t> flag;
};
static_assert(sizeof(Line) == 64);

struct RegionHeader {
  uint64_t magic;
  int32_t size;
  uint32_t slot_bytes;
  uint32_t channel_bytes;
  alignas(kLine) std::atomic<uint32_t> sleepers;  // ranks that sleep on their doorbells
  FailureBoard failure;
};

struct RankState {
  alignas(kLine) std::atomic<uint64_t> posted;  // calls posted
  alignas(kLine) std::atomic<uint64_t> done;    // calls that this rank has finished
  // The last call in which it finished touching its peers' memory.
  alignas(kLine) std::atomic<uint64_t> executed;
  alignas(kLine) std::atomic<uint64_t> published;  // staged rounds whose slot is written
  alignas(kLine) std::atomic<uint64_t> combined;   // staged rounds whose slot it has written again
  alignas(kLine) std::atomic<uint64_t> consumed;   // staged rounds that this rank has read
  alignas(kLine) std::atomic<uint32_t> inside;     // the rank is touching its peers' memory now
  alignas(kLine) std::atomic<uint32_t> doorbell;   // futex: rung for a rank that sleeps
  std::atomic<uint32_t> asleep;
  alignas(kLine) std::atomic<uint32_t> departed;  // this rank's end was destroyed
  std::atomic<int32_t> pid;
  std::atomic<int64_t> looked;  // steady clock, ns: when it last checked on its peers during a wait
  // Peer of the pending send or receive at that time, plus one; 0 in a collective.
  std::atomic<int32_t> peer_then;
  std::atomic<uint32_t> peer_memory_step;  // set-up of shm/process_peer_memory.h
  uint64_t probe_address;
  uint64_t probe_value;
};

struct ChannelState {
  alignas(kLine) std::atomic<uint64_t> written;  // bytes put in by the sender
  alignas(kLine) std::atomic<uint64_t> read;     // bytes taken out by the receiver
  std::atomic<uint64_t> pulled;  // messages that the receiver has pulled from the sender's memory
};

struct RegionShape {
  int size = 1;
  uint32_t slot_bytes = 256 * 1024;    // a multiple of 128
  uint32_t channel_bytes = 64 * 1024;  // of each ordered pair; a multiple of 128
};
// A shape whose memory stays moderate for `size` ranks.
RegionShape default_shape(int size);

// Memory for ranks that are threads of this process, freed with its last owner. The kernel provides
// its pages as they are touched.
// Throws: SystemError.
std::shared_ptr<void> fresh_memory(const RegionShape& shape);

// A view of a mapped region; does not own the memory.
class Region {
 public:
  static size_t bytes(const RegionShape& shape);
  // `memory` is fresh from the kernel, or another rank has initialised it with the same shape;
  // aligned to 128.
  Region(std::byte* memory, const RegionShape& shape);
  // Writes the header. All other fields begin as zeros, so that pages that no call needs are never
  // touched. Called once, by the rank that made the memory, before any other uses it.
  void initialise();
  // Throws Mismatch if the header is not that of `shape`.
  void verify() const;

  int size() const { return shape_.size; }
  const RegionShape& shape() const { return shape_; }
  RegionHeader& header() const { return *reinterpret_cast<RegionHeader*>(memory_); }
  RankState& rank(int rank) const { return reinterpret_cast<RankState*>(memory_ + ranks_)[rank]; }
  // The descriptor of the rank's call `number` (from 1).
  CallDescriptor& descriptor(int rank, uint64_t number) const {
    return reinterpret_cast<CallDescriptor*>(
        memory_ + descriptors_)[static_cast<uint64_t>(rank) * kDescriptors + number % kDescriptors];
  }
  // The rank's kLinesARank lines of a parity.
  Line* lines(int rank, uint64_t parity) const {
    return reinterpret_cast<Line*>(memory_ + lines_) +
           ((parity % 2) * static_cast<uint64_t>(shape_.size) + static_cast<uint64_t>(rank)) *
               kLineStride;
  }
  std::byte* slot(int rank, uint64_t round) const {
    return memory_ + slots_ +
           (static_cast<uint64_t>(rank) * kSlots + round % kSlots) * shape_.slot_bytes;
  }
  ChannelState& channel(int src, int dst) const;
  std::byte* channel_ring(int src, int dst) const;

 private:
  static constexpr uint64_t kLineStride = (kLinesARank + 1) / 2 * 2;  // pairs of cache lines

  std::byte* memory_;
  RegionShape shape_;
  size_t ranks_, descriptors_, lines_, slots_, channels_;  // offsets
};

}  // namespace lockstep::inline v0::rounds
