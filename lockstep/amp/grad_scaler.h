// GradScaler: prevents float16 gradients from underflowing. The loss is multiplied by a scale
// before backward, and the gradients are divided by it before the step; steps whose gradients
// contain infinities or NaN are skipped, and the scale decreases and grows accordingly. Like
// torch.amp.GradScaler (and Micikevicius et al., "Mixed Precision Training", ICLR 2018); bfloat16
// does not need it.
//
//   amp::GradScaler scaler(comm);
//   optimizer.zero_grad();
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);                               // only if gradients are looked at,
//   torch::nn::utils::clip_grad_norm_(parameters, 1.0);      // such as here
//   scaler.step(optimizer);
//   scaler.update();
//
// With gradient accumulation: scale the loss of every micro-step; unscale, step and update once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0::amp {

// The options of a GradScaler, with the names and defaults of torch.amp.GradScaler.
struct GradScalerOptions {
  double init_scale = 65536.0;     // the first scale
  double growth_factor = 2.0;      // above 1
  double backoff_factor = 0.5;     // between 0 and 1
  int64_t growth_interval = 2000;  // successful steps in a row before the scale grows
  // False: every call passes its input through, so the same code serves both cases.
  bool enabled = true;
};

// The state that a checkpoint must keep.
struct GradScalerState {
  double scale = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  int64_t growth_interval = 0;
  int64_t growth_tracker = 0;  // successful steps in a row so far
  friend bool operator==(const GradScalerState&, const GradScalerState&) = default;
};

class LOCKSTEP_API GradScaler {
 public:
  // Without a communicator this process works alone; with one, all ranks skip a step if one of them
  // must, so their scales stay equal.
  // Throws: InvalidArgument.
  // Collective: with a communicator, unscale() and step().
  explicit GradScaler(const GradScalerOptions& options = {});
  explicit GradScaler(Communicator comm, const GradScalerOptions& options = {});

  // Returns loss x scale, differentiably. May be called for any number of losses per step.
  // Only current_scale() and state() wait for a device, and step() once, if the optimizer must know
  // on the host whether gradients are finite. The fused optimizers (optim/adam.h) need not know it
  // from their second step on: the scale, the detected infinities and the ranks' agreement then
  // stay on the gradients' device.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the gradients of the optimizer's parameters by the scale, in place, and looks for
  // infinities and NaN. May be called once per optimizer between updates.
  // Throws: InvalidArgument for a second call, if no parameter has a gradient, and for float16
  // gradients (the parameters should be float32).
  void unscale(torch::optim::Optimizer& optimizer);

  // Calls unscale() if that was not done, then optimizer.step() if all gradients are finite.
  // Returns whether the step was taken; it returns true if the device decides, which is the case
  // for gradients on a device and an optimizer of flat/steps_on_device.h, which takes or skips the
  // step there. The gradients of a skipped step stay as they are.
  // Throws: InvalidArgument for a second step of the optimizer before update().
  bool step(torch::optim::Optimizer& optimizer);
  // The same with `take_step` instead of optimizer.step(), for example to clip the unscaled
  // gradients first.
  bool step(torch::optim::Optimizer& optimizer, const std::function<void()>& take_step);

  // To be called once after the steps of all optimizers. The scale decreases if any of them found
  // infinities or NaN, grows after growth_interval successful steps unless it would become
  // infinite, or becomes `scale`.
  // Throws: InvalidArgument if there was no unscale() or step() since the last update().
  void update(std::optional<double> scale = std::nullopt);

  bool enabled() const { return options_.enabled; }  // false: a scaler that does nothing
  double current_scale() const;                      // 1 if not enabled
  GradScalerState state() const;                     // for a checkpoint
  // Requires: no step is in progress.
  // Throws: InvalidArgument if the values are not those of a scaler.
  void load_state(const GradScalerState& state);
  // From now on works with these ranks, such as a communicator's new generation
  // (recover/recovery.h). Results found since the last update() are dropped.
  // Requires: no step is in progress.
  void use(Communicator comm);

 private:
  struct Progress {
    bool stepped = false;
    at::Tensor found_inf;  // [1] float32, 0 or 1, on the scale's device
  };

  Progress& unscale_inside(torch::optim::Optimizer& optimizer);
  Progress& begin_step(torch::optim::Optimizer& optimizer);
  void move_to(at::Device device);

  GradScalerOptions options_;
  std::optional<Communicator> comm_;
  at::Tensor scale_;           // float32; on the CPU until the first gradients on a device
  at::Tensor growth_tracker_;  // int32, on the same device
  std::map<const torch::optim::Optimizer*, Progress> progress_;  // since the last update()
};

}  // namespace lockstep::inline v0::amp
