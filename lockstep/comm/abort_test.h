// Tests of the backends: a second thread aborts the communicator while a rank waits in a call, as a
// watchdog does.
#pragma once

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0 {

// Aborts `comm` from another thread at `due`. The destructor waits until it has done so.
class Watchdog {
 public:
  Watchdog(const Communicator& comm, const std::function<bool()>& due, const char* reason)
      : thread_([=, watched = comm]() mutable {
          while (!due()) std::this_thread::yield();
          watched.abort(reason);
          watched.abort("and another reason, which comes too late");
        }) {}
  ~Watchdog() { thread_.join(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::thread thread_;
};

// A case of three ranks: 0 and 1 wait for 2 until rank 0's watchdog aborts; 2 arrives after they
// have given up.
struct AbortedWait {
  std::atomic<int> waiting{0};
  std::atomic<bool> over{false};

  void run(Communicator& comm) {
    const auto ends = [](const std::function<void()>& call) {
      EXPECT_THAT(message_of<PeerLost>(call), ::testing::HasSubstr("out of coffee"));
    };
    if (comm.rank() == 2) {
      while (!over) std::this_thread::yield();
      return ends([&] { comm.barrier(); });
    }
    {
      std::optional<Watchdog> watchdog;
      if (comm.rank() == 0)
        watchdog.emplace(comm, [this] { return waiting == 2; }, "out of coffee");
      ++waiting;
      const at::Tensor t = at::full({5000}, 1.0);
      ends([&] { comm.all_reduce(t); });
    }
    ends([&] { comm.barrier(); });
    if (comm.rank() == 0) over = true;
  }
};

}  // namespace lockstep::inline v0
