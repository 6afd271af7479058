// A lock on an open file, which goes with whoever holds it: a killed process leaves none behind.
#pragma once

#include <cstdint>

namespace lockstep {

enum class FileLock : uint8_t {
  kHeld,   // by this descriptor and its copies, until the last of them is closed
  kTaken,  // by another one, of this process or of any on a host that shares the file's locks
  kNone,   // the file system has no locks, or refuses them: nothing is known of others
};

// Takes the file's one lock (flock(2)) where it is free. Does not wait. On NFS `fd` must be open for writing.
FileLock try_lock(int fd) noexcept;

}  // namespace lockstep
