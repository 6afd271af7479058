#include "lockstep/testing/thread_ranks.h"

#include "lockstep/comm/thread_ranks.h"

namespace lockstep::inline v0::testing {

void run_threads(int size, const std::function<void(Communicator&)>& fn, ThreadOptions options) {
  run_ranks_as_threads(size, fn, options.timeout, options.slot_bytes);
}

}  // namespace lockstep::inline v0::testing
