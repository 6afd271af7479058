// The learning rates of DeepSpeed's schedulers, as pure functions of the step. No libtorch.
//
// DeepSpeed's schedulers advance after a step of the optimizer, and the first step uses their
// initial rate. With gamma(k) as in their documentation, step 0 has the minimum and step s >= 1 has
// gamma(s - 1): both of the first two steps of a warm-up have the minimum.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::optim {

// DeepSpeed's schedules.
enum class WarmupScheduleType : uint8_t {
  kWarmup,        // WarmupLR: from min to max, then max
  kWarmupDecay,   // WarmupDecayLR: then linearly down to 0
  kWarmupCosine,  // WarmupCosineLR: then down along half a cosine wave
};
// How the rate rises.
enum class WarmupShape : uint8_t { kLog, kLinear };

// A schedule with DeepSpeed's keys.
struct WarmupSchedule {
  WarmupScheduleType type = WarmupScheduleType::kWarmup;
  int64_t total_num_steps = 0;  // except in WarmupLR
  int64_t warmup_num_steps = 1000;
  WarmupShape warmup_type = WarmupShape::kLog;
  // For WarmupLR and WarmupDecayLR. Without a maximum: the optimizer's lr; for WarmupDecayLR 0.001.
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr = std::nullopt;
  // For WarmupCosineLR, in units of the optimizer's lr.
  double warmup_min_ratio = 0;
  double cos_min_ratio = 0.0001;

  bool operator==(const WarmupSchedule&) const = default;
};

// The rate of step `step`, counted from 0 without skipped steps. `lr` is the optimizer's.
// Throws: InvalidArgument for a negative step.
LOCKSTEP_API double warmup_rate(const WarmupSchedule& schedule, double lr, int64_t step);

}  // namespace lockstep::inline v0::optim
