// The lock between forks of this process and the work of its threads.
#pragma once

#include "lockstep/core/export.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0 {

// A thread of Lockstep's own holds it while it works in a process that may start ranks, and a fork
// that is not followed by exec (SubprocessOptions::body) holds it, too: no such thread then holds a
// lock of a library, such as libcrypto's, which no thread would release in the child. In the child it
// is free.
LOCKSTEP_API Mutex& fork_lock();

}  // namespace lockstep::inline v0
