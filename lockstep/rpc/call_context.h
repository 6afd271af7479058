// What a call that is being served hands on to the calls that are made inside it. Not for programs.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/core/deadline.h"

namespace lockstep::rpc::internal {

class Core;
class Link;
class Recorder;

struct CallContext {
  std::optional<Deadline> deadline = {};                    // nested calls end by then
  std::shared_ptr<Recorder> autograd = {};                  // of the calls that are made
  std::shared_ptr<Core> core = {};                          // whose call it is
  std::shared_ptr<const std::atomic<bool>> cancelled = {};  // the caller waits no longer
  std::shared_ptr<Link> from = {};                          // the caller

  // Of what goes on once a future is there: its calls have a place of their own, from the moment when it was said what follows.
  CallContext continued() const;
  CallContext without_autograd() const {
    CallContext other = *this;
    other.autograd = nullptr;
    return other;
  }
};

// This thread's. A thread of the user's own has an empty one.
CallContext& this_context();

// Puts another one in its place while it lives.
class ContextScope {
 public:
  explicit ContextScope(CallContext context)
      : outer_(std::exchange(this_context(), std::move(context))) {}
  ~ContextScope() { this_context() = std::move(outer_); }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  CallContext outer_;
};

}  // namespace lockstep::rpc::internal
