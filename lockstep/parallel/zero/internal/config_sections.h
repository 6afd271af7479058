// The parts of a DeepSpeed-style configuration. No libtorch. Not used directly: see zero_config.h,
// whose errors these throw.
#pragma once

#include "lockstep/parallel/zero/internal/json_section.h"
#include "lockstep/parallel/zero/zero_config.h"

namespace lockstep::zero::internal {

// Each takes its own section.
OptimizerConfig read_optimizer(JsonSection section);
ScheduleConfig read_scheduler(JsonSection section);
bool read_bf16(JsonSection section);  // whether it is enabled
bool read_fp16(JsonSection section, LossScaleConfig& scale);

// These take the whole. The last goes through everything that DeepSpeed has beside the training
// itself, or instead of it, and refuses what would change the result.
double read_clipping(JsonSection& top);
void read_zero(JsonSection& top, ZeroConfig& config);
void check_the_rest(JsonSection& top);

}  // namespace lockstep::zero::internal
