// The memory of a ring, and a member's place in it: what producers and consumers share. Not a
// public header.
//
// One sealed memfd holds a header, the slots' words and the slots. All that is read from it may
// have been written by a broken process of the same user: the geometry is copied and checked once,
// and every other number only counts or orders.
//
// A member holds an open file description lock on one byte of the memfd. The kernel drops the lock
// when the process ends, however it ends; so every process sees which members live, in every PID
// namespace and without a number that can be reused. The byte's index is the member's number, and
// the lock makes it the member's alone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/core/cache_line.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/shared_memory.h"
#include "lockstep/core/ticks.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/insitu/schema.h"
#include "lockstep/insitu/slot_word.h"
#include "lockstep/insitu/stats.h"

namespace lockstep::inline v0::insitu {

inline constexpr uint32_t kMaxSlots = 4096;
inline constexpr uint32_t kMaxMembers = 256;

// Something that members wait for: a futex, and whether anyone sleeps.
struct Event {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> asleep;

  // Call it after a sequentially consistent store: then either the sleeper sees the stored value,
  // or this call sees the sleeper.
  void raise() noexcept;
};

struct alignas(kLinePair) MemberRecord {
  std::atomic<uint32_t> state;  // MemberState, and above it how many members have been here
  std::atomic<uint32_t> producer;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> produced;
  std::atomic<uint64_t> dropped;
  std::atomic<uint64_t> consumed;
  std::atomic<uint64_t> waited_ns;
};

struct RingHeader {
  // Written by the maker before anyone else sees the memory, and copied before it is believed.
  uint64_t magic;
  uint32_t version;
  uint32_t slots;
  uint32_t producers;  // the stream has ended when so many have closed or died, and none lives
  uint32_t schema_bytes;
  std::array<std::byte, kMaxEncodedSchema> schema;

  alignas(kLinePair) std::atomic<uint64_t> next_number;
  alignas(kLinePair) Event data;   // a sample was committed, or the end came nearer
  alignas(kLinePair) Event space;  // a slot became free
  alignas(kLinePair) std::atomic<uint64_t> produced;
  std::atomic<uint64_t> dropped;
  std::atomic<uint64_t> consumed;
  std::atomic<uint64_t> abandoned;
  std::atomic<uint64_t> redelivered;
  std::atomic<uint64_t> gone_producers;  // whose record another member has taken
  std::atomic<uint32_t> used_members;    // no record from this one on was ever used
  std::array<MemberRecord, kMaxMembers> members;
};

// The geometry of a ring, as a value apart from its memory.
struct Geometry {
  Schema schema;
  uint32_t slots = 0;
  uint32_t producers = 1;

  size_t words_offset() const;
  size_t origins_offset() const;
  size_t slots_offset() const;
  size_t slot_bytes() const { return schema.sample_bytes(); }
  size_t total_bytes() const;
};

// A ring's memory, mapped, and its geometry, checked.
// Throws: DataError for memory that is no ring of this version; SystemError.
struct MappedRing {
  SharedMapping mapping;
  Geometry geometry;
};
MappedRing map_ring(int memory);

// A member's mapping of a ring. Several threads of a member may use it.
class RingMemory {
 public:
  // The memfd of a new ring. Throws: SystemError; InvalidArgument for a ring of more than 2^44
  // bytes.
  static UniqueFd make(const Geometry& geometry);

  // Maps `memory` and becomes a member. What a dead member of the same number left is put in order.
  // Throws: DataError for memory that is no ring of this version; InvalidArgument if the ring has
  // kMaxMembers members; SystemError.
  RingMemory(UniqueFd memory, bool producer);
  // Leaves the ring as a killed process would: slots in work go to others.
  ~RingMemory();
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  const Geometry& geometry() const { return geometry_; }
  uint32_t member() const { return member_; }
  uint32_t slots() const { return geometry_.slots; }
  std::byte* slot(uint32_t index) const;
  int fd() const { return memory_.get(); }

  // Producers.
  // Claims a free slot, or the oldest full one where `or_oldest`; nullopt if there is none.
  struct Claim {
    uint32_t slot = 0;
    uint64_t number = 0;
    bool overwrites = false;
  };
  std::optional<Claim> claim(bool or_oldest) noexcept;
  void commit(uint32_t slot) noexcept;
  void count_dropped() noexcept;
  void abandon(uint32_t slot) noexcept;

  // Consumers.
  struct Taken {
    uint32_t slot = 0;
    uint64_t number = 0;
    uint32_t producer = 0;
  };
  // Takes the full slot with the lowest number; nullopt if there is none.
  std::optional<Taken> take() noexcept;
  void release(uint32_t slot) noexcept;
  // Places a taken sample back.
  void put_back(uint32_t slot, uint64_t number) noexcept;

  // Marks this member as closed, and a producer as finished. Once.
  void close() noexcept;
  bool closed() const noexcept { return closed_.load(); }
  // Whether no producer lives and all that were announced have finished.
  bool producers_finished() const noexcept;
  struct Held {
    uint32_t full = 0, writing = 0, reading = 0;
  };
  // How many slots are in which state.
  Held held() const noexcept;
  // Gives the slots of members whose process has ended to others.
  void sweep() noexcept;

  // The same, unless it was done a moment ago.
  void sweep_now_and_then() noexcept;

  // Returns once there() is true, and false at the deadline. there() may be called by any number.
  // Members that die meanwhile are noticed. Counts the time as waited.
  template <typename There>
  bool wait_for(Event& event, Deadline deadline, const There& there) {
    if (there()) return true;
    const Waiting waiting(*this);
    for (int i = 0; i < kSpins; ++i) {
      cpu_pause();
      if (there()) return true;
    }
    for (;;) {
      const uint32_t seen = event.count.load(std::memory_order_seq_cst);
      event.asleep.store(1, std::memory_order_seq_cst);
      if (there()) return true;
      if (deadline.expired()) return false;
      sleep(event, seen, deadline);
    }
  }

  RingStats stats() const;
  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(mapping_.data()); }
  MemberRecord& own_record() const { return header().members[member_]; }

 private:
  std::atomic<uint64_t>* words() const;
  std::atomic<uint32_t>* origins() const;
  bool alive(uint32_t member) const noexcept;
  uint32_t used_members() const noexcept;
  void enter(bool producer);
  void sweep_slots_of(uint32_t member) noexcept;
  void mark_lost(uint32_t member) noexcept;
  void sleep(Event& event, uint32_t seen, Deadline deadline) noexcept;

  static constexpr int kSpins = 100;  // a microsecond
  // Adds its lifetime to the member's waited time.
  class Waiting {
   public:
    explicit Waiting(RingMemory& ring) : ring_(ring) {}
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    RingMemory& ring_;
    Deadline start_ = Deadline::after({});
  };

  UniqueFd memory_;  // without a lock, so that others may have it
  UniqueFd lock_;    // a description of its own, which has the member's lock
  SharedMapping mapping_;
  Geometry geometry_;
  uint32_t member_ = 0;
  uint32_t entered_ = 0;  // the record's state while this member is open
  std::atomic<bool> closed_{false};
  std::atomic<uint32_t> next_slot_{0};  // where the search for a free slot begins
  std::atomic<int64_t> swept_{0};       // when, on the steady clock
};

}  // namespace lockstep::inline v0::insitu
