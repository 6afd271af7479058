// run_lone_ranks: a test's ranks as processes without a launcher that ends all when one dies, for
// tests of what the survivors see and do.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::testing {

// Hosts for the ranks, such as NetworkNamespaces.
struct LoneHosts {
  std::vector<int> of_rank = {};  // empty: all ranks run here
  // Words to put before a command so that it runs on the host.
  std::function<std::vector<std::string>(int host)> prefix = {};
  // What moves a thread to the host: for ranks that are forks, if it is given.
  std::function<std::function<void()>(int host)> entrance = {};
  // Runs fn so that the sockets it makes are the host's. Host 0 has the store.
  std::function<void(int host, const std::function<void()>& fn)> on = {};
  std::string address = {};  // of host 0, for all hosts
};

// The options of run_lone_ranks().
struct LOCKSTEP_API LoneOptions {
  // When the whole is not over by then, the ranks that still run are killed and the result says so.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  // As in RankOptions (process_ranks.h); with GoogleTest: lone_point() of gtest_ranks.h.
  std::string name = {};
  std::vector<std::string> arguments = {};            // that bring main() to this call
  LoneHosts hosts = {};                               // on which the ranks run
  std::map<std::string, std::string> variables = {};  // for every rank's environment
};

// Whether this process is a rank of run_lone_ranks(), and not the test that calls it.
LOCKSTEP_API bool in_lone_rank();

// How a rank ended.
struct LoneRank {
  ExitStatus status;
  bool was_stopped =
      false;  // it stopped itself (SIGSTOP), and was killed once the others had ended
  bool timed_out = false;
  std::string output;  // stdout and stderr
};

// Runs fn() in `size` processes, forks or not as for run_ranks(), once all have started; in them
// lockstep::init() joins the job through a store that this process serves, so it outlives every
// rank. A child ends with 0, or with 1 after an exception, whose text is in the output. Returns
// when all have ended; nothing that it started is left. Throws LaunchError, SystemError.
LOCKSTEP_API std::vector<LoneRank> run_lone_ranks(int size, const std::function<void()>& fn,
                                                  const LoneOptions& options);

// What a process holds, to compare before and after.
struct Holdings {
  int fds = 0;       // open descriptors
  int children = 0;  // processes, zombies included
  int threads = 0;
  int memfds = 0;  // mappings of shared anonymous memory
  int64_t rss_kib = 0;
  int64_t heap_bytes = 0;  // what malloc has given out, in all threads; 0 under a sanitizer
};
LOCKSTEP_API Holdings holdings();  // of this process, now
// The same, as soon as it is no more than `before` (apart from memory), or after 2 s: libraries
// have threads that close what they hold a moment later.
LOCKSTEP_API Holdings holdings_after(const Holdings& before);

}  // namespace lockstep::inline v0::testing
