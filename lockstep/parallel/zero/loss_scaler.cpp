#include "lockstep/parallel/zero/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::zero {

LossScaler::LossScaler(const LossScaleConfig& config) : config_(config) {
  state_.scale = config.loss_scale != 0
                     ? config.loss_scale
                     : std::ldexp(1.0, static_cast<int>(config.initial_scale_power));
  state_.hysteresis = config.hysteresis;
}

void LossScaler::fall() {
  if (state_.hysteresis > 1) {
    --state_.hysteresis;
    return;
  }
  if (state_.scale <= config_.min_loss_scale) {
    throw Error("float16: gradients overflow though the loss scale is at its minimum, " +
                std::to_string(config_.min_loss_scale) +
                "; lower the learning rate, or train in bfloat16");
  }
  state_.scale = std::max(state_.scale / 2, config_.min_loss_scale);
}

void LossScaler::update(bool overflow) {
  if (config_.loss_scale != 0) return;
  if (overflow) {
    fall();
    state_.last_overflow = state_.steps;
  } else {
    const int64_t good = state_.steps - state_.last_overflow - 1;
    const bool window = good > 0 && good % config_.loss_scale_window == 0;
    if (window || config_.consecutive_hysteresis) state_.hysteresis = config_.hysteresis;
    if (window) state_.scale *= 2;
  }
  ++state_.steps;
}

void LossScaler::load_state(const LossScaleState& state) {
  if (!(state.scale > 0) || !std::isfinite(state.scale) || state.steps < 0 ||
      state.last_overflow < -1 || state.last_overflow >= state.steps || state.hysteresis < 1)
    throw InvalidArgument("loss scale: the state is not that of a scaler");
  state_ = state;
}

}  // namespace lockstep::inline v0::zero
