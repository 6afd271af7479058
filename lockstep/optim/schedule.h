// Learning-rate schedules: pure functions of the step. No libtorch.
//
// A schedule gives a factor for the base learning rate. Step 0 is the first optimizer step, so the
// rate of step s is base * schedule.factor(s), set before that step. A resumed run needs no state
// but the step:
//
//   const auto schedule = optim::linear({.total_steps = 10'000, .warmup = {.ratio = 0.1}});
//   optim::set_learning_rate(optimizer, 2e-5 * schedule.factor(step));
#pragma once

#include <cstdint>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::optim {

// The factor rises linearly from `from` (step 0) to 1. The length is `steps` where that is not 0;
// otherwise ceil(ratio * total_steps), as in transformers' TrainingArguments.
struct Warmup {
  int64_t steps = 0;
  double ratio = 0;  // of total_steps, in [0, 1]
  double from = 0;   // 1 / world size for Goyal et al.'s gradual warm-up
};

// The options of a schedule.
struct ScheduleOptions {
  int64_t total_steps = 0;  // warm-up included; constant() needs it only for a warm-up by ratio
  Warmup warmup = {};       // before the schedule itself
  double floor = 0;         // minimum of the factor, in [0, 1]: eta_min / base in PyTorch's terms
  double cycles = 0.5;      // cosine(): number of waves; 0.5 falls once from 1 to `floor`
};

// A value type: it may be copied and shared among threads.
class LOCKSTEP_API Schedule {
 public:
  // Throws: InvalidArgument for a negative step.
  double factor(int64_t step) const;
  int64_t warmup_steps() const { return warmup_steps_; }  // of all steps the first so many

 private:
  enum class Kind { kConstant, kLinear, kCosine };
  Schedule(Kind kind, const ScheduleOptions& options);
  friend Schedule constant(const ScheduleOptions& options);
  friend Schedule linear(const ScheduleOptions& options);
  friend Schedule cosine(const ScheduleOptions& options);

  Kind kind_;
  ScheduleOptions options_;
  int64_t warmup_steps_;
};

// The formulas are those of transformers' get_constant_schedule_with_warmup,
// get_linear_schedule_with_warmup, get_cosine_schedule_with_warmup and
// get_cosine_with_min_lr_schedule_with_warmup; without warm-up, cosine() is also PyTorch's
// CosineAnnealingLR, and a warm-up with `from` is PyTorch's LinearLR. One difference: after
// total_steps, a cosine() of half a wave stays at the floor, where theirs would rise again. All
// throw InvalidArgument for options out of range.
LOCKSTEP_API Schedule constant(const ScheduleOptions& options = {});
LOCKSTEP_API Schedule linear(const ScheduleOptions& options);
LOCKSTEP_API Schedule
cosine(const ScheduleOptions& options);  // Loshchilov and Hutter, arXiv:1608.03983

// How the learning rate changes when N ranks make the batch N times as large.
enum class Scaling {
  kNone,
  kLinear,  // times N, for SGD: Goyal et al., arXiv:1706.02677; with Warmup{.from = 1.0 / N}
  // Times sqrt(N), for Adam and LAMB: Krizhevsky, arXiv:1404.5997; You et al., 1904.00962.
  kSquareRoot,
};

// `base` is the rate for one rank's batch.
// Throws: InvalidArgument if world_size < 1.
LOCKSTEP_API double scaled_learning_rate(double base, int world_size,
                                         Scaling scaling = Scaling::kLinear);

}  // namespace lockstep::inline v0::optim
