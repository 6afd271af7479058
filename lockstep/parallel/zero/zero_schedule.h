// The learning rates of DeepSpeed's schedulers, as pure functions of the step. No libtorch.
//
// DeepSpeed's schedulers move on after a step of the optimizer, and the first step is taken at the
// rate that they start from. So with gamma(k) as their documentation has it, step 0 has the minimum
// and step s >= 1 has gamma(s - 1): both of the first two steps of a warm-up are at the minimum.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep::zero {

enum class ScheduleType : uint8_t {
  kWarmup,        // WarmupLR: from min to max, then max
  kWarmupDecay,   // WarmupDecayLR: then down to 0 in a straight line
  kWarmupCosine,  // WarmupCosineLR: then down along half a wave
};
enum class WarmupShape : uint8_t { kLog, kLinear };

struct ScheduleConfig {
  ScheduleType type = ScheduleType::kWarmup;
  int64_t total_num_steps = 0;  // not of WarmupLR
  int64_t warmup_num_steps = 1000;
  WarmupShape warmup_type = WarmupShape::kLog;
  // WarmupLR, WarmupDecayLR; no maximum: the optimizer's lr, for WarmupDecayLR 0.001.
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr = std::nullopt;
  // WarmupCosineLR, in units of the optimizer's lr.
  double warmup_min_ratio = 0;
  double cos_min_ratio = 0.0001;

  bool operator==(const ScheduleConfig&) const = default;
};

// The rate of step `step`, counted from 0 without those that were left out. `lr` is the
// optimizer's. Throws InvalidArgument for a negative step.
double scheduled_rate(const ScheduleConfig& schedule, double lr, int64_t step);

}  // namespace lockstep::zero
