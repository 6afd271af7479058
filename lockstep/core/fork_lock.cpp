#include "lockstep/core/fork_lock.h"

namespace lockstep::inline v0 {

Mutex& fork_lock() {
  static Mutex lock;
  return lock;
}

}  // namespace lockstep::inline v0
