// Deaths that a test has foreseen: a rank kills itself at a moment of a step.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
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

// How many of them there were.
inline size_t deaths_in(const std::filesystem::path& folder) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    count += entry.is_regular_file();
  return count;
}

// The moments of this process, in order: where no caller says a moment's step, it is the one after
// the last that is done. `folder`: one that exists, in which each death leaves a file.
class Moments {
 public:
  explicit Moments(Deaths deaths, std::filesystem::path folder = {})
      : deaths_(std::move(deaths)), folder_(std::move(folder)) {}
  void at(const char* what) const { at(what, step_ + 1); }
  void at(const char* what, int64_t step) const {
    for (size_t i = 0; i < deaths_.size(); ++i) {
      const Death& death = deaths_[i];
      if (death.what != std::string(what) || death.step != step || death.rank != number("RANK") ||
          death.life != number("LOCKSTEP_RESTART_COUNT"))
        continue;
      if (!folder_.empty()) std::ofstream(folder_ / std::to_string(i));
      ::kill(::getpid(), SIGKILL);
    }
  }
  void done(int64_t step) { step_ = step; }

 private:
  static int number(const char* name) { return std::stoi(process_env()(name).value_or("0")); }

  Deaths deaths_;
  std::filesystem::path folder_;
  std::atomic<int64_t> step_{0};  // done
};

}  // namespace lockstep::inline v0::recover_test
