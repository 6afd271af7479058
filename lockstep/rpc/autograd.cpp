#include "lockstep/rpc/autograd.h"

#include <ATen/ops/ones_like.h>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/internal/core.h"

namespace lockstep::inline v0::rpc {
AutogradContext::AutogradContext(Agent agent) : agent_(std::move(agent)) {
  auto& current = internal::this_context();
  if (current.autograd) throw InvalidArgument("this thread is in an rpc::AutogradContext already");
  state_ = agent_.core()->contexts().make();
  current.autograd = std::make_shared<internal::Recorder>(state_, internal::CallPath{});
}

AutogradContext::~AutogradContext() {
  internal::this_context().autograd = nullptr;
  agent_.core()->contexts().forget(state_->id);
}

void AutogradContext::backward(const std::vector<at::Tensor>& losses, bool retain_graph) {
  if (losses.empty()) throw InvalidArgument("backward() needs a loss");
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < losses.size(); ++i) {
    const std::string which = "loss " + std::to_string(i) + " of backward() ";
    if (!losses[i].defined() || losses[i].numel() != 1)
      throw InvalidArgument(which + "is no scalar");
    if (!losses[i].requires_grad())
      throw InvalidArgument(which + "needs no gradient: it depends on no parameter");
    gradients.push_back(at::ones_like(losses[i]));
  }
  const internal::ContextScope outside(internal::this_context().without_autograd());
  internal::PassOptions options{.round = ++rounds_, .retain_graph = retain_graph};
  int64_t late = state_->run(losses, std::move(gradients), options).get().late;
  while (late > 0) {
    options.round = ++rounds_;
    late = agent_.core()->contexts().run_late(*state_, options, {}).late;
  }
}

std::vector<std::pair<at::Tensor, at::Tensor>> AutogradContext::gradients() const {
  return state_->gradients();
}

at::Tensor AutogradContext::gradient_of(const at::Tensor& parameter) const {
  return state_->gradient_of(parameter);
}

std::vector<std::pair<at::Tensor, at::Tensor>> context_gradients() {
  const auto& recorder = internal::this_context().autograd;
  return recorder ? recorder->context->gradients()
                  : std::vector<std::pair<at::Tensor, at::Tensor>>();
}

}  // namespace lockstep::inline v0::rpc
