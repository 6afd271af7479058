// The context that a served call hands on to the calls that it makes. Not for programs.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0::rpc::internal {

class Core;
class Link;
class Recorder;

struct LOCKSTEP_API CallContext {
  std::optional<Deadline> deadline = {};                    // nested calls end by then
  std::shared_ptr<Recorder> autograd = {};                  // records the calls that are made
  std::shared_ptr<Core> core = {};                          // of the agent whose call it is
  std::shared_ptr<const std::atomic<bool>> cancelled = {};  // the caller has stopped waiting
  std::shared_ptr<Link> from = {};                          // the caller

  // The context of a continuation of a future: its calls have an order of their own, from the
  // moment when the continuation was attached.
  CallContext continued() const;
  CallContext without_autograd() const {
    CallContext other = *this;
    other.autograd = nullptr;
    return other;
  }
};

// The context of this thread. A user's own thread has an empty one.
LOCKSTEP_API CallContext& this_context();

// Replaces this thread's context for its lifetime.
class LOCKSTEP_API ContextScope {
 public:
  explicit ContextScope(CallContext context)
      : outer_(std::exchange(this_context(), std::move(context))) {}
  ~ContextScope() { this_context() = std::move(outer_); }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  CallContext outer_;
};

}  // namespace lockstep::inline v0::rpc::internal
