#include "lockstep/comm/thread_ranks.h"

#include <exception>
#include <numeric>
#include <thread>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/engines/rounds/region.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/core/instruction_set.h"
#include "lockstep/core/mutex.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0 {

void run_ranks_as_threads(int size, const std::function<void(Communicator&)>& fn,
                          std::chrono::nanoseconds timeout, uint32_t slot_bytes) {
  (void)instruction_set_limit(process_env());  // before a rank waits for another's reduction
  rounds::Tuning tuning;
  rounds::RegionShape shape = rounds::default_shape(size);
  if (slot_bytes != 0) {
    shape.slot_bytes = slot_bytes;
    shape.channel_bytes = slot_bytes;
    tuning = {.ll_up_to = -1, .mapped = false};
  }
  std::vector<std::unique_ptr<Backend>> backends = make_local_backends(shape, tuning);

  const std::shared_ptr<GroupMaker> groups = make_local_groups();
  std::vector<int> all_ranks(static_cast<size_t>(size));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  const auto board = std::make_shared<trace::CallBoard>(trace::CallBoard::create(size));
  Mutex mutex;
  std::exception_ptr first;  // guarded by mutex
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank, backend = std::move(backends[rank])]() mutable {
      auto origin = std::make_shared<GroupOrigin>(
          GroupOrigin{.maker = groups, .name = "all", .members = all_ranks});
      Communicator comm(std::move(backend), Topology{rank, size, rank, size, 0},
                        {.timeout = timeout, .board = board, .origin = std::move(origin)});
      try {
        fn(comm);
      } catch (const std::exception& error) {
        {
          const MutexLock lock(mutex);
          if (!first) first = std::current_exception();
        }
        comm.abort("rank " + std::to_string(rank) + " threw: " + error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace lockstep::inline v0
