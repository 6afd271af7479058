#include "lockstep/optim/warmup_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::optim {
namespace {

constexpr double kDecayDefaultMax = 0.001;

int64_t warmup_of(const WarmupSchedule& schedule) {
  return std::max<int64_t>(2, schedule.warmup_num_steps);
}

// The progress of the warm-up, 0 to 1, of a scheduler that has advanced `moves` times.
double warmed(const WarmupSchedule& schedule, int64_t moves) {
  const auto length = static_cast<double>(warmup_of(schedule));
  const auto done = static_cast<double>(moves - 1);
  if (schedule.warmup_type == WarmupShape::kLinear) return done / length;
  return std::log(done + 1) / std::log(length);
}

// The remaining fraction of the steps after the warm-up: from 1 to 0.
double left_of(const WarmupSchedule& schedule, int64_t moves) {
  const int64_t falling = std::max<int64_t>(1, schedule.total_num_steps - warmup_of(schedule));
  const auto left = static_cast<double>(schedule.total_num_steps - (moves - 1));
  return std::max(0.0, left / static_cast<double>(falling));
}

double cosine_ratio(const WarmupSchedule& schedule, int64_t moves) {
  const int64_t falling = std::max<int64_t>(1, schedule.total_num_steps - warmup_of(schedule));
  const auto done = static_cast<double>(moves - warmup_of(schedule));
  const double progress = std::min(1.0, done / static_cast<double>(falling));
  const double wave = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, schedule.cos_min_ratio + (1 - schedule.cos_min_ratio) * wave);
}

}  // namespace

double warmup_rate(const WarmupSchedule& schedule, double lr, int64_t step) {
  if (step < 0) {
    throw InvalidArgument("warmup_rate: step " + std::to_string(step) + " is negative");
  }
  const bool warming = step - 1 < warmup_of(schedule);
  if (schedule.type == WarmupScheduleType::kWarmupCosine) {
    if (step == 0) return 0;
    if (!warming) return lr * cosine_ratio(schedule, step);
    const double from = schedule.warmup_min_ratio;
    return lr * (from + (1 - from) * warmed(schedule, step));
  }
  const double low = schedule.warmup_min_lr;
  const double top = schedule.warmup_max_lr.value_or(
      schedule.type == WarmupScheduleType::kWarmup ? lr : kDecayDefaultMax);
  if (step == 0) return low;
  if (warming) return low + (top - low) * warmed(schedule, step);
  if (schedule.type == WarmupScheduleType::kWarmup) return top;
  return low + (top - low) * left_of(schedule, step);
}

}  // namespace lockstep::inline v0::optim
