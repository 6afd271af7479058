// run_ranks: a test's ranks as processes of their own, with a deadline, their output in one block,
// and their stacks when they hang.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/launch/agent.h"

namespace lockstep::inline v0::testing {

// The options of run_ranks().
struct LOCKSTEP_API RankOptions {
  std::string backend = "shm";  // of the communicators
  std::chrono::nanoseconds timeout =
      std::chrono::seconds(30);  // of every wait of the communicators
  // When the whole is not over by then, every rank's stacks and its last collective are printed and
  // the ranks are killed.
  std::chrono::nanoseconds deadline = std::chrono::seconds(120);
  // So often ranks that die are started anew, alone, and meet the others in Communicator::reform():
  // fn runs from its start there.
  int replacements = 0;
  // Ranks are killed now and then.
  std::optional<launch::FailureDrill> simulate_failures = {};
  // The others go on without ranks that die (Communicator::shrink()).
  bool shrinks = false;
  // How children that execute this program anew find this call again: a name that no other
  // call has, and the arguments that bring main() here. With GoogleTest: gtest_point() of
  // gtest_ranks.h.
  std::string name = {};
  std::vector<std::string> arguments = {};  // that bring main() to this call
};

// How the ranks ended.
struct RankResult {
  launch::LaunchResult launch;
  bool timed_out = false;
  std::string report;  // what to print when the ranks did not all end well; "" otherwise
};

// Runs fn(comm) in `size` processes and returns when all have ended. They are forks of this one
// where that is safe (one thread, no shared memory), or else execute this program anew up to this
// call. An exception in a rank is a failure of that rank. Does not throw for failing ranks: look at
// the result. Throws LaunchError, InvalidArgument.
LOCKSTEP_API RankResult run_ranks(int size, const std::function<void(Communicator&)>& fn,
                                  const RankOptions& options);

}  // namespace lockstep::inline v0::testing
