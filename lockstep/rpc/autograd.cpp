#include "lockstep/rpc/autograd.h"

#include <ATen/ops/ones_like.h>

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/internal/contexts.h"
#include "lockstep/rpc/internal/core.h"

namespace lockstep::rpc {
namespace internal {
namespace {

std::shared_ptr<ContextState> context_of(Core& core, ContextId id) {
  auto state = core.contexts().find(id);
  if (!state) throw InvalidArgument("the autograd context is not here: it has ended");
  return state;
}

}  // namespace

void register_autograd(Core& core, Registry& registry) {
  const auto add = [&](const char* name, auto body) {
    using Typed = typename decltype(callable_of(body))::template Function<decltype(body)>;
    Core::insert_own(registry, name, std::make_shared<Typed>(std::move(body)));
  };
  add("rpc.backward", [&core](ContextId id, const CallPath& path, const PassOptions& options,
                              std::vector<at::Tensor> gradients) {
    return context_of(core, id)->run_record(path, caller(), std::move(gradients), options);
  });
  add("rpc.late", [&core](ContextId id, const CallPath& sent, int64_t place, const CallPath& by,
                          at::Tensor gradient) {
    context_of(core, id)->late(sent, place, by, std::move(gradient));
    return PassResult{};
  });
  // Sends the late gradients of this process, and of those that it called, except of processes that
  // have been asked.
  add("rpc.run_late",
      [&core](ContextId id, const PassOptions& options, std::vector<std::string> asked) {
        return run_late_everywhere(core, *context_of(core, id), options, asked);
      });
}

// Returns how many gradients were sent back late meanwhile, and which processes have been asked.
LateResult run_late_everywhere(Core& core, ContextState& state, const PassOptions& options,
                               std::vector<std::string> asked) {
  asked.push_back(core.self().name);
  LateResult result;
  result.late = state.run_late(options).get().late;
  for (const std::string& peer : state.peers()) {
    if (std::find(asked.begin(), asked.end(), peer) != asked.end()) continue;
    const LateResult answer =
        call_agent<LateResult>(core, peer, "rpc.run_late", How::kSync, state.id, options, asked)
            .get();
    result.late += answer.late;
    asked = answer.asked;
  }
  result.asked = asked;
  return result;
}

}  // namespace internal

AutogradContext::AutogradContext(Agent agent) : agent_(std::move(agent)) {
  auto& current = internal::this_context();
  if (current.autograd) throw InvalidArgument("this thread is in an rpc::AutogradContext already");
  internal::Core& core = *agent_.core();
  state_ = core.contexts().find_or_make({core.self().incarnation, core.next_number()},
                                        core.self().incarnation, core.weak_from_this());
  current.autograd = std::make_shared<internal::Recorder>(state_, internal::CallPath{});
}

AutogradContext::~AutogradContext() {
  internal::this_context().autograd = nullptr;
  agent_.core()->forget(state_->id);
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
    late = internal::run_late_everywhere(*agent_.core(), *state_, options, {}).late;
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

}  // namespace lockstep::rpc
