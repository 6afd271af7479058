// DeviceMemory: the memory of all devices, in pages that only running operations may touch. Not a
// public header.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/testing/fake_cuda/internal/address_ranges.h"
#include "lockstep/testing/fake_cuda/internal/clock.h"
#include "lockstep/testing/fake_cuda/internal/history.h"
#include "lockstep/testing/fake_cuda/internal/place.h"

namespace lockstep::inline v0::testing::fake {

class Capture;

// One allocation. Its contents begin at a page.
struct Block {
  std::byte* data = nullptr;
  size_t bytes = 0;  // whole pages
  int device = 0;
  int home = 0;  // the stream that was current when it was made
  PlacePtr made;
  bool foreign = false;          // another process's
  std::weak_ptr<Capture> graph;  // whose memory it is, until that is gone
  // Of DeviceMemory alone:
  int opened = 0;
  int lent = 0;               // of these, by open_at()
  std::vector<int> recorded;  // streams it was recorded on
  AccessHistory history;
};

// Memory that was freed while streams might still use it.
struct FreedInUse {
  Access use;
  PlacePtr made;
};

// Any thread may call. Blocks are the caller's between allocate() and free().
class DeviceMemory {
 public:
  // Throws SystemError where there are no addresses for as much.
  DeviceMemory(int devices, size_t bytes_each);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Filled with 0xff: NaN for floating-point numbers, -1 for integers. Nullptr where the device is
  // full.
  Block* allocate(int device, size_t bytes, int home, PlacePtr made);
  void free(Block* block, const VectorClock& before) noexcept;
  // Memory of another process, `bytes` (whole pages) of its file from `offset` on, as a block of
  // this device; to be given back by free(). Nullptr where it cannot be had.
  Block* adopt(int device, int file, size_t offset, size_t bytes, int home, PlacePtr made);
  // Where another process finds the memory that lies here.
  int file() const { return file_.get(); }
  size_t offset_of(const Block& block) const { return static_cast<size_t>(block.data - base_); }
  // What memory of this stream is handed out again by allocate() although a use of it is not over
  // by `home_clock`; each once.
  std::vector<FreedInUse> reused(int home, const VectorClock& home_clock);

  // The one that holds this byte, or nullptr.
  Block* find(const void* address) const;
  bool owns(const void* address) const { return address >= base_ && address < base_ + bytes_; }
  int device_of(const void* address) const;
  size_t used(int device) const;
  size_t peak(int device) const;
  void reset_peak(int device);
  size_t bytes_each() const { return bytes_each_; }

  // Operations touch a block between open() and close(); calls nest.
  void open(Block& block);
  void close(Block& block) noexcept;
  // The same by an address, for memory that another thread may free, which waits until it is closed: false where none
  // is there.
  bool open_at(const void* address);
  void close_at(const void* address) noexcept;
  // For the host that went on where it must not: until the next close().
  void open_once(Block& block);

  // AccessHistory::add on the block.
  std::optional<Access> add(Block& block, ByteRange bytes, Access access, const VectorClock& clock);
  void record_stream(Block& block, int stream);

 private:
  Block* find_locked(const void* address) const LOCKSTEP_REQUIRES(mutex_);
  void open_locked(Block& block) LOCKSTEP_REQUIRES(mutex_);
  void close_locked(Block& block) noexcept LOCKSTEP_REQUIRES(mutex_);

  Block* add_block(Block block) LOCKSTEP_REQUIRES(mutex_);

  struct Device {
    AddressRanges addresses;  // from base_ on
    size_t used = 0;
    size_t peak = 0;
  };

  UniqueFd file_;  // that the memory is of
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  size_t bytes_each_ = 0;
  mutable Mutex mutex_;
  std::vector<Device> devices_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<const std::byte*, std::unique_ptr<Block>> blocks_ LOCKSTEP_GUARDED_BY(mutex_);
  std::multimap<int, FreedInUse> freed_ LOCKSTEP_GUARDED_BY(mutex_);  // by home
  ConditionVariable given_back_;                                      // by close_at()
};

}  // namespace lockstep::inline v0::testing::fake
