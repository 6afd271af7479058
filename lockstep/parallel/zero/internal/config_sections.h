// The parts of a DeepSpeed-style configuration. No libtorch. Not used directly: see zero_config.h,
// whose errors they throw.
#pragma once

#include "lockstep/parallel/zero/internal/json_section.h"
#include "lockstep/parallel/zero/zero_config.h"

namespace lockstep::inline v0::zero::internal {

// Each reads its own section.
optim::OptimizerSpec read_optimizer(JsonSection section);
optim::WarmupSchedule read_scheduler(JsonSection section);
bool read_bf16(JsonSection section);  // whether it is enabled
bool read_fp16(JsonSection section, LossScaleConfig& scale);

// These read the whole configuration. The last goes through all keys of DeepSpeed's that do not
// concern the training itself, and refuses those that would change the result.
double read_clipping(JsonSection& top);
void read_zero(JsonSection& top, ZeroConfig& config);
void check_the_rest(JsonSection& top);

}  // namespace lockstep::inline v0::zero::internal
