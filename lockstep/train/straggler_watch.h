// StragglerWatch: decides which rank is late, by the time of each rank's own work. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// When a rank counts as late, and when it is evicted.
struct StragglerOptions {
  // A rank is late if its own work takes so many times the median of the others', and so many
  // seconds more for each step. It stays late until it is less than half way between that and
  // equal.
  double slower = 1.5;
  double least_seconds = 0.002;  // more than the others', for each step
  int windows = 2;               // late windows in a row until the rank is reported
  int64_t least_steps = 5;       // of a window; shorter ones are joined
  // A rank that is so many times slower in evict_windows windows in a row is evicted; 0: none is.
  double evict = 0;
  int evict_windows = 3;  // in a row
};

// Throws: InvalidArgument for options out of range; slower and evict must be above 1.
LOCKSTEP_API void check(const StragglerOptions& options);

// A rank that is late.
struct Straggler {
  int rank = -1;
  double seconds = 0;      // its own work a step, the median over the latest window
  double others = 0;       // the median of the others'
  int64_t since_step = 0;  // the first step of the first window in which it was late
  double late() const { return seconds - others; }  // a step
};

// A rank's steps since the window before.
struct RankWindow {
  double seconds = 0;  // median of the own work of a step
  int64_t steps = 0;
};

class LOCKSTEP_API StragglerWatch {
 public:
  // Throws InvalidArgument (check()).
  explicit StragglerWatch(StragglerOptions options = {});

  // The straggler that begins with a window, and the one that ends with it; nullopt: none does.
  struct Change {
    std::optional<Straggler> begins;
    std::optional<Straggler> ends;  // as it last was
  };
  // windows[r] is rank r's, up to `step`.
  // Requires: as many ranks in each call, and as many steps on all ranks except one that joined
  // later.
  Change add(std::span<const RankWindow> windows, int64_t step);

  // The rank that is reported as late.
  std::optional<Straggler> straggler() const;
  // The rank that is to be evicted, after add().
  std::optional<int> evicted() const;

 private:
  Change judge(int64_t first_step);

  StragglerOptions options_;
  std::vector<RankWindow> sums_;  // seconds times steps, of windows that are too short yet
  int64_t first_step_ = 0;        // of them
  std::optional<Straggler> suspect_;
  int late_windows_ = 0;   // of the suspect, in a row
  int evict_windows_ = 0;  // likewise, as slow as `evict`
};

// "rank 2 (on node7) is slower than the others since step 101: its own work takes 0.152 s a step,
// theirs 0.048 s"; and the line about its end.
LOCKSTEP_API std::string begins_text(const Straggler& straggler, const std::string& host);
LOCKSTEP_API std::string ends_text(const Straggler& straggler, const std::string& host,
                                   int64_t step);

}  // namespace lockstep::inline v0
