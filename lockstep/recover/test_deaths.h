// Deaths that a test has foreseen: a rank kills itself at a moment of a step.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/env.h"

namespace lockstep::inline v0::recover_test {

// Rank `rank` dies in its `life`-th life, at `what` of step `step`.
struct Death {
  const char* what;
  int64_t step;
  int rank, life;
};
using Deaths = std::vector<Death>;

// What happens in this process, in order: how the moment's step is known where nobody says it.
class Moments {
 public:
  explicit Moments(Deaths deaths) : deaths_(std::move(deaths)) {}
  void at(const char* what) const { at(what, step_ + 1); }
  void at(const char* what, int64_t step) const {
    for (const Death& death : deaths_) {
      if (std::string(death.what) == what && death.step == step && death.rank == number("RANK") &&
          death.life == number("LOCKSTEP_RESTART_COUNT"))
        ::kill(::getpid(), SIGKILL);
    }
  }
  void done(int64_t step) { step_ = step; }

 private:
  static int number(const char* name) { return std::stoi(process_env()(name).value_or("0")); }

  Deaths deaths_;
  std::atomic<int64_t> step_{0};  // done
};

}  // namespace lockstep::inline v0::recover_test
