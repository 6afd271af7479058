// Contexts: the contexts of distributed autograd in which this process takes part. Not a public
// header.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/internal/calls.h"
#include "lockstep/rpc/internal/context_state.h"
#include "lockstep/rpc/registry.h"

namespace lockstep::inline v0::rpc::internal {

// The effect of a round of late gradients.
struct LateResult {
  int64_t late = 0;
  std::vector<std::string> asked;
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("late", late);
    visit("asked", asked);
  }
};

// The contexts in which this process takes part.
// Thread-safety: any thread.
class Contexts final : public ContextPeers {
 public:
  // `calls` outlives it. Registers rpc.backward, rpc.late and rpc.run_late.
  Contexts(Calls& calls, Registry& registry);
  ~Contexts() override;
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;
  // `agent` owns this object.
  void start(const std::shared_ptr<Core>& agent) { self_ = std::shared_ptr<Contexts>(agent, this); }

  // A new context of this process.
  std::shared_ptr<ContextState> make();

  // `caller`: the incarnation of the calling process. Null: the context has ended, and a call that
  // was on its way does not make it anew.
  std::shared_ptr<ContextState> find_or_make(ContextId id, uint64_t caller);
  // The context has ended, whether it is here or not; tells the peers that were called in it from
  // here.
  void forget(ContextId id);
  // Ends the contexts of a process that is gone: it made them, or it alone has called in them here.
  void forget_those_of(uint64_t process);
  // Runs the late gradients of this process and of all processes that it called, except those in
  // `asked`.
  LateResult run_late(ContextState& state, const PassOptions& options,
                      std::vector<std::string> asked);

  Future<PassResult> backward(const std::string& peer, ContextId id, const CallPath& path,
                              const PassOptions& options,
                              const std::vector<at::Tensor>& gradients) override;
  Future<PassResult> late(const std::string& peer, const DeviceWay& way, ContextId id,
                          const CallPath& sent, int64_t place, const CallPath& by,
                          const at::Tensor& gradient) override;
  size_t size() const;

 private:
  std::shared_ptr<ContextState> find(ContextId id) const;  // InvalidArgument: not here
  struct Part {
    std::shared_ptr<ContextState> state;
    std::set<uint64_t> callers;
  };
  // Ended contexts: messages that arrive later for them were on their way.
  static constexpr size_t kEnded = 4096;

  Calls& calls_;
  std::weak_ptr<Contexts> self_;
  mutable Mutex mutex_;
  uint64_t last_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // the number of the last one that was made here
  std::map<ContextId, Part> contexts_ LOCKSTEP_GUARDED_BY(mutex_);
  std::set<ContextId> ended_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<ContextId> ended_in_order_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0::rpc::internal
