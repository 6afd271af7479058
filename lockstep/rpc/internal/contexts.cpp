#include "lockstep/rpc/internal/contexts.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/internal/notice.h"

namespace lockstep::inline v0::rpc::internal {

Contexts::Contexts(Calls& calls, Registry& registry) : calls_(calls) {
  const auto add = [&](const char* name, auto body) {
    using Typed = typename decltype(callable_of(body))::template Function<decltype(body)>;
    insert_own(registry, name, std::make_shared<Typed>(std::move(body)));
  };
  add("rpc.backward", [this](ContextId id, const CallPath& path, const PassOptions& options,
                             std::vector<at::Tensor> gradients) {
    return find(id)->run_record(path, this_context().from->peer().name, std::move(gradients),
                                options);
  });
  add("rpc.late", [this](ContextId id, const CallPath& sent, int64_t place, const CallPath& by,
                         at::Tensor gradient) {
    find(id)->late(sent, place, by, std::move(gradient));
    return PassResult{};
  });
  add("rpc.run_late",
      [this](ContextId id, const PassOptions& options, std::vector<std::string> asked) {
        return run_late(*find(id), options, std::move(asked));
      });
}

Contexts::~Contexts() {
  for (auto& [id, part] : contexts_) part.state->clear();
}

std::shared_ptr<ContextState> Contexts::make() {
  const uint64_t self = calls_.self().incarnation;
  uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    number = ++last_;
  }
  return find_or_make({self, number}, self);
}

std::shared_ptr<ContextState> Contexts::find_or_make(ContextId id, uint64_t caller) {
  const MutexLock lock(mutex_);
  if (ended_.contains(id)) return nullptr;
  Part& part = contexts_[id];
  if (!part.state) part.state = std::make_shared<ContextState>(id, self_);
  part.callers.insert(caller);
  return part.state;
}

std::shared_ptr<ContextState> Contexts::find(ContextId id) const {
  const MutexLock lock(mutex_);
  const auto found = contexts_.find(id);
  if (found == contexts_.end())
    throw InvalidArgument("the autograd context is not here: it has ended");
  return found->second.state;
}

void Contexts::forget(ContextId id) {
  std::shared_ptr<ContextState> gone;
  {
    const MutexLock lock(mutex_);
    if (ended_.insert(id).second) ended_in_order_.push_back(id);
    if (ended_in_order_.size() > kEnded) {
      ended_.erase(ended_in_order_.front());
      ended_in_order_.pop_front();
    }
    const auto found = contexts_.find(id);
    if (found == contexts_.end()) return;
    gone = std::move(found->second.state);
    contexts_.erase(found);
  }
  gone->clear();  // no peer is added afterwards
  Writer notice = notice_of(Notice::kForget);
  Codec<ContextId>::write(notice, id);
  for (const std::string& peer : gone->peers()) calls_.tell(peer, notice);
}

void Contexts::forget_those_of(uint64_t process) {
  std::vector<ContextId> ending;
  {
    const MutexLock lock(mutex_);
    for (auto& [id, part] : contexts_) {
      part.callers.erase(process);
      if (id.maker == process || part.callers.empty()) ending.push_back(id);
    }
  }
  for (const ContextId id : ending) forget(id);
}

LateResult Contexts::run_late(ContextState& state, const PassOptions& options,
                              std::vector<std::string> asked) {
  asked.push_back(calls_.self().name);
  LateResult result;
  result.late = state.run_late(options).get().late;
  for (const std::string& peer : state.peers()) {
    if (std::find(asked.begin(), asked.end(), peer) != asked.end()) continue;
    const LateResult answer = call_agent<LateResult>(calls_, peer, "rpc.run_late", How::kSync, {},
                                                     state.id, options, asked)
                                  .get();
    result.late += answer.late;
    asked = answer.asked;
  }
  result.asked = asked;
  return result;
}

Future<PassResult> Contexts::backward(const std::string& peer, ContextId id, const CallPath& path,
                                      const PassOptions& options,
                                      const std::vector<at::Tensor>& gradients) {
  return call_agent<PassResult>(calls_, peer, "rpc.backward", How::kSync, {}, id, path, options,
                                gradients);
}

Future<PassResult> Contexts::late(const std::string& peer, const DeviceWay& way, ContextId id,
                                  const CallPath& sent, int64_t place, const CallPath& by,
                                  const at::Tensor& gradient) {
  return call_agent<PassResult>(calls_, peer, "rpc.late", How::kAsync, {.way = &way}, id, sent,
                                place, by, gradient);
}

size_t Contexts::size() const {
  const MutexLock lock(mutex_);
  return contexts_.size();
}

}  // namespace lockstep::inline v0::rpc::internal
