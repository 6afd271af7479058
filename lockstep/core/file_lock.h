// A lock on an open file. It goes with its owner: a killed process leaves no lock behind.
#pragma once

#include <cstdint>

namespace lockstep::inline v0 {

enum class FileLock : uint8_t {
  kHeld,  // by this descriptor and its copies, until the last of them is closed
  // By another descriptor, of this process or of any on a host that shares the file's locks.
  kTaken,
  kNone,  // the file system has no locks, or refuses them: nothing is known about others
};

// Takes the file's one lock (flock(2)) where it is free. Does not wait. On NFS `fd` must be open
// for writing.
FileLock try_lock(int fd) noexcept;

}  // namespace lockstep::inline v0
