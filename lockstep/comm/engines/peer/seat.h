// Seat: a rank's entry in memory that all ranks of its host share, with what it shows them. Not a
// public header.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/peer/cuda_ipc.h"
#include "lockstep/core/cache_line.h"

namespace lockstep::inline v0::peer {

// The number of windows that a block holds at once.
inline constexpr int kSlots = 4;

// The part of the work on a window that a rank's device has finished.
enum class Mark {
  kGiven,   // its slot holds the rank's data
  kSummed,  // its slot holds the rank's share of a reduction
  kTaken,   // it has read what the rank needs from all slots
};
inline constexpr int kMarks = 3;

// Device memory: its address in its own process, and the handle by which others open it.
struct ShownMemory {
  std::byte* data;
  IpcHandle handle;
};

// The steps of meeting: ranks show each other their memory, then open it.
enum MeetingStep { kShow, kOpen };
inline constexpr int kMeetingSteps = 2;

// Zeroed at first. Fields that are not atomic are valid once the ranks have met after they were
// written.
struct Seat {
  static constexpr int kMostSymmetric = 256;

  alignas(kLinePair) std::atomic<uint32_t> left;  // its device has finished all its work
  std::atomic<uint32_t> closed;                   // it has closed all other ranks' blocks
  std::atomic<int64_t> taken;                     // windows behind which it has recorded kTaken
  uint64_t process;                               // own_process()
  int32_t device;
  ShownMemory block;
  CudaEvent events[kMarks][kSlots];
  IpcHandle event_handles[kMarks][kSlots];
  ShownMemory symmetric[kMostSymmetric];
  std::atomic<uint32_t> released[kMostSymmetric];  // the caller has released its own memory
  std::atomic<uint32_t> shut[kMostSymmetric];      // it has closed the other ranks' memory
  char errors[kMeetingSteps][512];  // for each step of meeting: why this rank cannot take it
};

// All ranks' seats. Copies refer to the same ones.
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

// A number for this process that is unique on the host, whatever its PID namespace.
uint64_t own_process();

}  // namespace lockstep::inline v0::peer
