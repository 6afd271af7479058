#include "lockstep/testing/thread_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/local/local_backend.h"

namespace lockstep::testing {

void run_threads(int size, const std::function<void(Communicator&)>& fn, ThreadOptions options) {
  rounds::RegionShape shape = rounds::default_shape(size);
  if (options.slot_bytes != 0) {
    shape.slot_bytes = options.slot_bytes;
    shape.channel_bytes = options.slot_bytes;
  }
  std::vector<std::unique_ptr<Backend>> backends = make_local_backends(shape);

  std::mutex mutex;
  std::exception_ptr first;  // guarded by mutex
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank, backend = std::move(backends[rank])]() mutable {
      Communicator comm(std::move(backend), Topology{rank, size, rank, size, 0},
                        {.timeout = options.timeout});
      try {
        fn(comm);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        comm.abort("rank " + std::to_string(rank) + " threw: " + error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace lockstep::testing
