// Arena: memory that all ranks of a shm group have mapped, for tensors that peers read and write in
// place ("symmetric memory", as OpenSHMEM's symmetric heap and NCCL's registered buffers).
//
// It is one sealed memfd, far larger than the memory in use: rank r's memory begins at r * kSpan,
// and an allocation has the same offset in every rank's span, so the ranks agree on places without
// communicating. Pages exist once they are touched and go when their owner frees them. The memory
// has no name in a file system, and all of it goes with the last process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/engines/rounds/peer_memory.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::shm {

// Thread-safety: any thread, since tensors may be freed on any thread.
class Arena {
 public:
  // Makes a memfd for `size` ranks; called by one of them.
  // Throws: SystemError.
  static UniqueFd make_memory(int size);

  // Maps this rank's end of `memory`.
  // Throws: SystemError.
  Arena(UniqueFd memory, int rank, int size);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Allocates `bytes` (> 0) of this rank's memory, zeroed, page-aligned and populated; the peers'
  // memory is mapped beside it. Every rank calls this in the same order with the same size; a call
  // that fails (SystemError) counts as made. The memory is freed by release(), or with the arena.
  std::byte* allocate(int64_t bytes);
  // The same for memory that all ranks share: rank 0's, of which this rank populates its part.
  // find() does not return it, since it is not this rank's own.
  std::byte* allocate_shared(int64_t bytes);
  // Maps the peers' pages, so that the first use does not pay for it. Call it after all ranks have
  // allocated.
  void warm(const std::byte* memory);
  // Called once for every allocate(), when peers no longer use the memory.
  // Thread-safety: any thread.
  void release(std::byte* memory) noexcept;

  std::optional<rounds::Window> find(const std::byte* memory, int64_t bytes) const;
  std::byte* peer(int rank, rounds::Window window) const;

 private:
  struct Block {
    uint32_t id = 0;
    uint64_t offset = 0;  // the offset in every rank's span
    size_t bytes = 0;     // whole huge pages
    size_t used = 0;      // the bytes that have pages: of shared memory all, else those asked for
    std::vector<std::byte*> bases;  // by rank; null once unmapped; shared memory has one
    bool shared = false;
    bool released = false;  // by this rank
  };
  Block next_block(int64_t bytes, bool shared) LOCKSTEP_REQUIRES(mutex_);
  std::byte* keep(Block block, std::byte* own) LOCKSTEP_REQUIRES(mutex_);
  void drop(const Block& block) noexcept;
  void give_back(const Block& block, int rank) noexcept;
  std::atomic<uint8_t>* released_flags(int rank) const;
  void reap() LOCKSTEP_REQUIRES(mutex_);

  UniqueFd memory_;
  int rank_;
  int size_;
  std::vector<std::byte*> controls_;  // the beginning of each rank's span
  mutable Mutex mutex_;
  std::map<uint32_t, Block> blocks_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<const std::byte*, uint32_t> own_ LOCKSTEP_GUARDED_BY(mutex_);  // this rank's live blocks
  std::map<const std::byte*, uint32_t> shared_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<size_t> live_{0};  // own_.size()
  uint32_t next_id_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  uint64_t next_offset_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::inline v0::shm
