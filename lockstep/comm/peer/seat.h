// Seat: what a rank shows the others of its host, in memory that all have. Not a public header.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/peer/cuda_ipc.h"

namespace lockstep::peer {

// Windows of calls that a block holds at once.
inline constexpr int kSlots = 4;

// What a rank's device has done with a window.
enum class Mark {
  kGiven,   // its slot holds what it gives
  kSummed,  // its slot holds its share of a reduction
  kTaken,   // it has taken what it takes from all slots
};
inline constexpr int kMarks = 3;

// Device memory: as its own process has it, and by which others open it.
struct ShownMemory {
  std::byte* data;
  IpcHandle handle;
};

// Of meeting: ranks show each other their memory, and open it.
enum MeetingStep { kShow, kOpen };
inline constexpr int kMeetingSteps = 2;

// Zeroed at first. What is no atomic is there once the ranks have met after it was written.
struct Seat {
  static constexpr int kMostSymmetric = 256;

  alignas(128) std::atomic<uint32_t> left;  // its device is through with all that it was given
  std::atomic<uint32_t> closed;             // it has none of the others' blocks open
  std::atomic<int64_t> taken;               // windows behind which it has recorded kTaken
  uint64_t process;                         // own_process()
  int32_t device;
  ShownMemory block;
  CudaEvent events[kMarks][kSlots];
  IpcHandle event_handles[kMarks][kSlots];
  ShownMemory symmetric[kMostSymmetric];
  std::atomic<uint32_t> released[kMostSymmetric];  // the caller has let its own go
  std::atomic<uint32_t> shut[kMostSymmetric];      // it has none of the others' open
  char errors[kMeetingSteps][512];  // in each step of meeting: why this rank cannot take it
};

// All ranks' seats. Copies are of the same.
class Seats {
 public:
  Seats() = default;
  Seats(SymmetricMemory page, int size) : page_(std::move(page)), size_(size) {}

  int size() const { return size_; }
  Seat& of(int rank) const { return reinterpret_cast<Seat*>(page_.data)[rank]; }
  explicit operator bool() const { return page_.data != nullptr; }

 private:
  SymmetricMemory page_;
  int size_ = 0;
};

// This process among those of the host, whatever the name spaces of their numbers.
uint64_t own_process();

}  // namespace lockstep::peer
