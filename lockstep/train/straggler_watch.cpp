#include "lockstep/train/straggler_watch.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/core/quantile.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0 {
namespace {

std::string who(const Straggler& straggler, const std::string& host) {
  return "rank " + std::to_string(straggler.rank) + " (on " + host + ")";
}

}  // namespace

void check(const StragglerOptions& options) {
  if (!(options.slower > 1) || !(options.least_seconds >= 0) || options.windows < 1 ||
      options.least_steps < 1)
    throw InvalidArgument(
        "StragglerOptions: slower must be above 1, least_seconds 0 or more, windows and "
        "least_steps 1 or more");
  if (options.evict != 0 &&
      (!(options.evict > 1) || !std::isfinite(options.evict) || options.evict_windows < 1))
    throw InvalidArgument("StragglerOptions: evict is how many times slower, above 1, or 0");
}

StragglerWatch::StragglerWatch(StragglerOptions options) : options_(options) {
  check(options_);
  // Who is to be evicted is late in the first place.
  if (options_.evict > 0) options_.slower = std::min(options_.slower, options_.evict);
}

StragglerWatch::Change StragglerWatch::add(std::span<const RankWindow> windows, int64_t step) {
  int64_t steps = 0;
  for (const RankWindow& window : windows) steps = std::max(steps, window.steps);
  if (sums_.size() != windows.size()) {
    sums_.assign(windows.size(), {});
    first_step_ = step - steps + 1;
  }
  int64_t least = INT64_MAX;
  for (size_t r = 0; r < windows.size(); ++r) {
    sums_[r].seconds += windows[r].seconds * static_cast<double>(windows[r].steps);
    sums_[r].steps += windows[r].steps;
    least = std::min(least, sums_[r].steps);
  }
  if (windows.size() < 2 || least < options_.least_steps) return {};
  const Change change = judge(first_step_);
  sums_.assign(windows.size(), {});
  first_step_ = step + 1;
  return change;
}

StragglerWatch::Change StragglerWatch::judge(int64_t first_step) {
  const auto seconds_of = [this](size_t r) {
    return sums_[r].seconds / static_cast<double>(sums_[r].steps);
  };
  const auto seen = [&](size_t r) {
    std::vector<double> others;
    for (size_t other = 0; other < sums_.size(); ++other)
      if (other != r) others.push_back(seconds_of(other));
    return Straggler{.rank = static_cast<int>(r),
                     .seconds = seconds_of(r),
                     .others = median(std::move(others)),
                     .since_step = first_step};
  };
  const auto late = [&](const Straggler& one, double slower) {
    return one.seconds > slower * one.others && one.late() >= options_.least_seconds;
  };
  Change change;
  if (suspect_) {
    Straggler now = seen(static_cast<size_t>(suspect_->rank));
    if (late(now, (1 + options_.slower) / 2)) {
      now.since_step = suspect_->since_step;
      suspect_ = now;
    } else {
      change.ends = straggler();
      suspect_.reset();
      late_windows_ = evict_windows_ = 0;
    }
  }
  if (!suspect_) {
    size_t slowest = 0;
    for (size_t r = 1; r < sums_.size(); ++r)
      if (seconds_of(r) > seconds_of(slowest)) slowest = r;
    const Straggler one = seen(slowest);
    if (!late(one, options_.slower)) return change;
    suspect_ = one;
  }
  if (++late_windows_ == options_.windows) change.begins = suspect_;
  const bool evicts = options_.evict > 0 && late(*suspect_, options_.evict);
  evict_windows_ = evicts ? evict_windows_ + 1 : 0;
  return change;
}

std::optional<Straggler> StragglerWatch::straggler() const {
  return late_windows_ >= options_.windows ? suspect_ : std::nullopt;
}

std::optional<int> StragglerWatch::evicted() const {
  if (!straggler() || evict_windows_ < options_.evict_windows) return std::nullopt;
  return suspect_->rank;
}

std::string begins_text(const Straggler& straggler, const std::string& host) {
  return who(straggler, host) + " is slower than the others since step " +
         std::to_string(straggler.since_step) + ": its own work takes " +
         fixed(straggler.seconds, 3) + " s a step, theirs " + fixed(straggler.others, 3) + " s";
}

std::string ends_text(const Straggler& straggler, const std::string& host, int64_t step) {
  return who(straggler, host) + " is as fast as the others again by step " + std::to_string(step) +
         "; it had been slower since step " + std::to_string(straggler.since_step);
}

}  // namespace lockstep::inline v0
