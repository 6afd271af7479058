#include "lockstep/flat/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <functional>
#include <utility>
#include <vector>

#include "lockstep/flat/gradient_home.h"

namespace lockstep::inline v0::flat {

namespace {

// The backward that this thread's outermost OuterBackward is part of.
struct Outer {
  int task = -1;
  std::vector<std::function<void()>> ends;  // held by autograd's callback of that task
};
thread_local std::shared_ptr<Outer> outer;

}  // namespace

OuterBackward::OuterBackward() : outermost_(outer == nullptr) {
  if (!outermost_) return;
  auto own = std::make_shared<Outer>();
  own->task = torch::autograd::get_current_graph_task_id();
  torch::autograd::Engine::get_default_engine().queue_callback([own] {
    for (const std::function<void()>& end : own->ends) end();
  });
  outer = std::move(own);
}

OuterBackward::~OuterBackward() {
  if (outermost_) outer = nullptr;
}

void BackwardWatch::watch(std::span<const at::Tensor> parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    hooks_.push_back(
        on_gradient(parameters[i], [weak = weak_from_this(), i](const at::Tensor& passed) {
          const auto self = weak.lock();
          if (!self) return;
          self->arm();
          try {
            self->gradient_arrived(i, passed);
          } catch (...) {
            self->began_ = false;
            throw;
          }
        }));
  }
}

void BackwardWatch::arm(bool outermost) {
  const int task = outer ? outer->task : torch::autograd::get_current_graph_task_id();
  if (failed() || (began_ && outermost && task != task_)) {
    began_ = false;
    backward_failed();
  }
  if (began_) return;
  // Autograd drops a task's callbacks with the task, and does not call those of one that threw.
  auto running = std::make_shared<char>();
  running_ = running;
  task_ = task;
  auto ended = [self = shared_from_this(), running = std::move(running)] { self->end(); };
  if (outer)
    outer->ends.emplace_back(std::move(ended));
  else
    torch::autograd::Engine::get_default_engine().queue_callback(std::move(ended));
  began_ = true;
  backward_began();
}

void BackwardWatch::forget_failed_backward() {
  // If the backward ran on a device's thread, its task may outlive it for a moment.
  const bool outside = torch::autograd::get_current_graph_task_id() == -1;
  if (!failed() && !(began_ && outside)) return;
  began_ = false;
  backward_failed();
}

void BackwardWatch::end() {
  if (!std::exchange(began_, false)) return;
  backward_ended();
}

}  // namespace lockstep::inline v0::flat
