#include "lockstep/core/parallel_blocks.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0 {

void parallel_blocks(int64_t count, int64_t least, int threads,
                     const std::function<void(int64_t begin, int64_t end)>& work) {
  if (threads < 0 || threads > 1024) {
    throw InvalidArgument(std::to_string(threads) +
                          " threads; use 1 to 1024, or 0 for as many as there are processors");
  }
  if (least < 1)
    throw InvalidArgument("parallel_blocks: blocks of " + std::to_string(least) + " pieces");
  if (count <= 0) return;
  const int64_t wanted = threads == 0 ? usable_cpu_count() : threads;
  const int64_t used = std::min(wanted, (count - 1) / least + 1);
  // More blocks than threads, so that one slow block does not make the others wait.
  const int64_t size = std::max(least, (count - 1) / (used * 8) + 1);

  std::atomic<int64_t> next{0};
  Mutex mutex;
  std::exception_ptr error;
  const auto loop = [&] {
    try {
      for (int64_t begin; (begin = next.fetch_add(size)) < count;)
        work(begin, std::min(begin + size, count));
    } catch (...) {
      next = count;
      const MutexLock lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (int64_t i = 1; i < used; ++i) helpers.emplace_back(loop);
    } catch (const std::system_error&) {
      // No more threads available: the existing ones do the work.
    }
    loop();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace lockstep::inline v0
