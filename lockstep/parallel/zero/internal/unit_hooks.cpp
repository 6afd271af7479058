#include "lockstep/parallel/zero/internal/unit_hooks.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace lockstep::inline v0::internal {
namespace {

using Pass = GatheredUnits::Pass;

// A part of an activation checkpoint computes forward again within a backward.
Pass pass_now() {
  return torch::autograd::get_current_graph_task_id() == -1 ? Pass::kForward : Pass::kBackward;
}

// A unit's backward begins when the gradient of its output has arrived, and ends when that of its
// input has. Where the input requires none, the end of the whole backward ends it. `input`: of this
// unit alone.
void watch_backward(const std::shared_ptr<GatheredUnits>& units, size_t unit,
                    const at::Tensor& input, const at::Tensor& output) {
  const auto running = std::make_shared<bool>(false);
  const std::weak_ptr<GatheredUnits> weak = units;
  output.register_hook([weak, unit, running](const at::Tensor& gradient) {
    if (const auto held = weak.lock()) {
      held->reach(unit);
      *running = true;
    }
    return gradient;
  });
  if (!input.defined() || !input.requires_grad()) return;
  input.register_hook([weak, unit, running](const at::Tensor& gradient) {
    const auto held = weak.lock();
    if (held && std::exchange(*running, false)) held->done(unit, Pass::kBackward);
    return gradient;
  });
}

// Keeps the unit fetched during its lifetime.
class Computing {
 public:
  Computing(GatheredUnits& units, size_t unit) : units_(units), unit_(unit), pass_(pass_now()) {
    units_.need(unit_, pass_);
  }
  ~Computing() { units_.done(unit_, pass_, stays_); }
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;
  void stays() { stays_ = true; }

 private:
  GatheredUnits& units_;
  size_t unit_;
  Pass pass_;
  bool stays_ = false;
};

}  // namespace

std::vector<HookHandle> hook_units(torch::nn::Module& model,
                                   const std::shared_ptr<GatheredUnits>& units) {
  std::vector<HookHandle> handles;
  for (size_t unit = 0; unit < units->size(); ++unit) {
    const std::weak_ptr<GatheredUnits> weak = units;
    handles.push_back(wrap_forward(
        model, units->name(unit), [weak, unit](const Forward& forward, const at::Tensor& input) {
          const auto held = weak.lock();
          if (!held) return forward(input);
          Computing computing(*held, unit);
          // These hooks belong to this pass, and run before those of the unit whose output it is,
          // which is fetched then.
          const bool watched =
              at::GradMode::is_enabled() && input.defined() && input.requires_grad();
          const at::Tensor own = watched ? input.view_as(input) : input;
          at::Tensor output = forward(own);
          if (at::GradMode::is_enabled() && output.requires_grad()) {
            watch_backward(held, unit, own, output);
            computing.stays();
          }
          return output;
        }));
  }
  return handles;
}

}  // namespace lockstep::inline v0::internal
