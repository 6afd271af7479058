// GradScaler: keeps float16 gradients from vanishing. The loss is multiplied by a scale before
// backward, the gradients are divided by it before the step; steps whose gradients hold infinities
// or NaN are left out, and the scale falls and grows accordingly. As torch.amp.GradScaler (and
// Micikevicius et al., "Mixed Precision Training", ICLR 2018); bfloat16 does not need it.
//
//   amp::GradScaler scaler(comm);
//   optimizer.zero_grad();
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);                               // only if gradients are looked at,
//   torch::nn::utils::clip_grad_norm_(parameters, 1.0);      // such as here
//   scaler.step(optimizer);
//   scaler.update();
//
// With gradient accumulation: scale every micro-step's loss; unscale, step and update once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "lockstep/comm/communicator.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::amp {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;      // above 1
  double backoff_factor = 0.5;     // between 0 and 1
  int64_t growth_interval = 2000;  // good steps in a row before the scale grows
  bool enabled = true;             // false: everything passes through, for code that serves both
};

// Everything that a checkpoint must keep.
struct GradScalerState {
  double scale = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  int64_t growth_interval = 0;
  int64_t growth_tracker = 0;  // good steps in a row so far
  friend bool operator==(const GradScalerState&, const GradScalerState&) = default;
};

class GradScaler {
 public:
  // Alone, or with others: then unscale() and step() are collective, and all ranks leave a step out
  // if one of them must, so that their scales stay equal. Throws InvalidArgument.
  explicit GradScaler(const GradScalerOptions& options = {});
  explicit GradScaler(Communicator comm, const GradScalerOptions& options = {});

  // Nothing here but current_scale() and state() waits for a device, unless the optimizer has to be told whether
  // gradients are finite: then step() does, once. The fused optimizers (optim/adam.h) need not be told from their second
  // step on, whose scale, found infinities and agreement stay on the device of the gradients.
  //
  // loss x scale; differentiable. Any number of losses a step.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the gradients of the optimizer's parameters by the scale, in place, and looks for
  // infinities and NaN. At most once an optimizer between updates. Throws InvalidArgument when it
  // was done before, when no parameter has a gradient, and for float16 gradients (the parameters
  // should be float32).
  void unscale(torch::optim::Optimizer& optimizer);

  // unscale() unless it was done, then optimizer.step() if all gradients are finite; returns
  // whether, and true where the device decides: where gradients are on a device and the optimizer is
  // flat/steps_on_device.h's, which then takes the step or leaves it out there. The gradients of a step that was left
  // out stay as they are. Throws InvalidArgument for a second step of the optimizer before update().
  bool step(torch::optim::Optimizer& optimizer);
  // The same with `take_step` in place of optimizer.step(): one that clips the unscaled gradients on
  // the way, say.
  bool step(torch::optim::Optimizer& optimizer, const std::function<void()>& take_step);

  // Once after the steps of all optimizers. The scale falls if any of them found infinities or NaN,
  // grows after growth_interval good steps unless it would become infinite, or becomes `scale`.
  // Throws InvalidArgument if there was no unscale() or step() since the last.
  void update(std::optional<double> scale = std::nullopt);

  bool enabled() const { return options_.enabled; }
  double current_scale() const;  // 1 if not enabled
  GradScalerState state() const;
  // Between steps. Throws InvalidArgument if the numbers are not those of a scaler.
  void load_state(const GradScalerState& state);
  // From now on with these ranks, such as a communicator's new generation (recover/recovery.h).
  // Between steps; what was found of one under way is forgotten.
  void use(Communicator comm);

 private:
  struct Progress {
    bool stepped = false;
    at::Tensor found_inf;  // [1] float32 where the scale is: 0 or 1
  };

  Progress& unscale_inside(torch::optim::Optimizer& optimizer);
  Progress& begin_step(torch::optim::Optimizer& optimizer);
  void move_to(at::Device device);

  GradScalerOptions options_;
  std::optional<Communicator> comm_;
  at::Tensor scale_;           // float32, on the CPU until a device's gradients have come
  at::Tensor growth_tracker_;  // int32, there
  std::map<const torch::optim::Optimizer*, Progress> progress_;  // since the last update
};

}  // namespace lockstep::amp
