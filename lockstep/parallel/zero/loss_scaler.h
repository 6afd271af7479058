// The loss scale of float16 training by DeepSpeed's rules, as a value type. No libtorch.
//
// The scale halves when `hysteresis` steps have overflowed, and doubles after `loss_scale_window`
// steps without an overflow. (amp::GradScaler follows PyTorch: it halves at once.)
#pragma once

#include <cstdint>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::zero {

// The keys of `fp16` in DeepSpeed's JSON.
struct LossScaleConfig {
  double loss_scale = 0;             // not 0: a constant scale; 0: dynamic, by the rest
  int64_t initial_scale_power = 16;  // the first scale is 2 to this power
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;  // a good step restores the hysteresis; false: a window does
  double min_loss_scale = 1;

  bool operator==(const LossScaleConfig&) const = default;
};

// The state in a checkpoint.
struct LossScaleState {
  double scale = 1;
  int64_t steps = 0;           // updates so far
  int64_t last_overflow = -1;  // the update of the latest overflow
  int64_t hysteresis = 1;      // overflows until the scale falls

  bool operator==(const LossScaleState&) const = default;
};

// The scale of the losses, and when it changes.
class LOCKSTEP_API LossScaler {
 public:
  explicit LossScaler(const LossScaleConfig& config);

  double scale() const { return state_.scale; }  // of the next loss
  // Called once a step.
  // Throws: Error when a scale at its minimum would have to fall: the gradients are not finite at
  // any scale.
  void update(bool overflow);

  const LossScaleState& state() const { return state_; }  // for a checkpoint
  // Throws InvalidArgument for a state that no scaler can have.
  void load_state(const LossScaleState& state);

 private:
  void fall();

  LossScaleConfig config_;
  LossScaleState state_;
};

}  // namespace lockstep::inline v0::zero
