#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::optim {
namespace {

bool is_fraction(double value) {
  return value >= 0 && value <= 1;  // false for NaN
}

int64_t length_of(const Warmup& warmup, int64_t total_steps) {
  if (warmup.steps > 0) return warmup.steps;
  return static_cast<int64_t>(std::ceil(warmup.ratio * static_cast<double>(total_steps)));
}

void check(const ScheduleOptions& options) {
  const Warmup& warmup = options.warmup;
  if (options.total_steps < 0 || warmup.steps < 0)
    throw InvalidArgument("schedule: total_steps and warmup.steps must not be negative");
  if (!is_fraction(warmup.ratio) || !is_fraction(warmup.from) || !is_fraction(options.floor))
    throw InvalidArgument("schedule: warmup.ratio, warmup.from and floor must lie in [0, 1]");
  if (warmup.steps == 0 && warmup.ratio > 0 && options.total_steps == 0)
    throw InvalidArgument("schedule: a warm-up by ratio needs total_steps");
  if (!(options.cycles > 0)) throw InvalidArgument("schedule: cycles must be above 0");
}

}  // namespace

Schedule::Schedule(Kind kind, const ScheduleOptions& options)
    : kind_(kind), options_(options), warmup_steps_(0) {
  check(options);
  warmup_steps_ = length_of(options.warmup, options.total_steps);
  if (kind == Kind::kConstant) return;
  if (options.total_steps < 1)
    throw InvalidArgument("schedule: a rate that falls needs total_steps of at least 1");
  if (warmup_steps_ > options.total_steps) {
    throw InvalidArgument("schedule: a warm-up of " + std::to_string(warmup_steps_) +
                          " steps is longer than the run, " + std::to_string(options.total_steps));
  }
}

double Schedule::factor(int64_t step) const {
  if (step < 0) throw InvalidArgument("schedule: step " + std::to_string(step) + " is negative");
  if (step < warmup_steps_) {
    const double done = static_cast<double>(step) / static_cast<double>(warmup_steps_);
    return options_.warmup.from + (1 - options_.warmup.from) * done;
  }
  if (kind_ == Kind::kConstant) return 1;
  const auto falling =
      static_cast<double>(std::max<int64_t>(1, options_.total_steps - warmup_steps_));
  double shape = 0;
  if (kind_ == Kind::kLinear) {
    shape = std::max(0.0, static_cast<double>(options_.total_steps - step) / falling);
  } else {
    // Half a period ends at the floor and stays there; longer waves continue.
    double progress = static_cast<double>(step - warmup_steps_) / falling;
    if (options_.cycles == 0.5) progress = std::min(progress, 1.0);
    shape = std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * options_.cycles * 2 * progress)));
  }
  return shape * (1 - options_.floor) + options_.floor;
}

Schedule constant(const ScheduleOptions& options) {
  return Schedule(Schedule::Kind::kConstant, options);
}
Schedule linear(const ScheduleOptions& options) {
  return Schedule(Schedule::Kind::kLinear, options);
}
Schedule cosine(const ScheduleOptions& options) {
  return Schedule(Schedule::Kind::kCosine, options);
}

double scaled_learning_rate(double base, int world_size, Scaling scaling) {
  if (world_size < 1) {
    throw InvalidArgument("scaled_learning_rate: a world of " + std::to_string(world_size) +
                          " ranks does not exist");
  }
  switch (scaling) {
    case Scaling::kLinear:
      return base * world_size;
    case Scaling::kSquareRoot:
      return base * std::sqrt(static_cast<double>(world_size));
    case Scaling::kNone:
      break;
  }
  return base;
}

}  // namespace lockstep::inline v0::optim
