// SimulatedFailures: decides which ranks the agent kills, and when, for users who test their
// program's recovery. Pure: it is told the time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::launch {

// How often ranks are killed, and by which seed.
struct FailureDrill {
  std::chrono::milliseconds every{0};  // mean time between failures on this host; above 0
  uint64_t seed = 0;                   // the same seed gives the same moments and ranks

  bool operator==(const FailureDrill&) const = default;
};

// From "every=SECONDS[,seed=N]".
// Throws: InvalidArgument, one line.
LOCKSTEP_API FailureDrill parse_failure_drill(const std::string& text);

class LOCKSTEP_API SimulatedFailures {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Starts at `now`, with moments between a half and three halves of `every` apart.
  SimulatedFailures(const FailureDrill& drill, Time now);

  Time next_time() const { return next_; }  // when the next rank is to be killed
  // Once the moment has come, one of the `running` local ranks, if there are any; then sets the
  // next moment.
  std::optional<int> take(const std::vector<int>& running, Time now);

 private:
  void set_next(Time from);

  std::chrono::milliseconds every_;
  std::mt19937_64 random_;
  Time next_;
};

}  // namespace lockstep::inline v0::launch
