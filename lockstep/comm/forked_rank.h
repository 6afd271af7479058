// Ranks as forks of a process that has loaded libtorch: it takes half a second of a processor to
// load.
#pragma once

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Whether ranks may be forks of this process now: it has no thread but its main one, so no lock is
// held by another and libtorch's pools do not exist; it has not begun to use an NVIDIA device,
// which a fork could not; it shares no memory with others, of which a fork would have no copy;
// nothing is preloaded (LD_PRELOAD), of which this cannot be known; and OpenMP has not bound its
// threads by this process's environment. Never under a sanitizer, which looks for leaks in a
// process that ends by itself.
LOCKSTEP_API bool can_fork_ranks();

// To be called first in such a rank: libtorch's number of threads and random numbers are those of a
// process that starts with the rank's environment.
LOCKSTEP_API void begin_forked_rank();

}  // namespace lockstep::inline v0
