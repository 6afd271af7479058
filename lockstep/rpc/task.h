// Task: work for an agent's thread. Not for programs.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::rpc::internal {

// Work to run once; it may own objects that cannot be copied.
class LOCKSTEP_API Work {
 public:
  virtual void run() = 0;
  // It is no longer needed. A part of a larger object releases that object.
  virtual void drop() noexcept { delete this; }

 protected:
  virtual ~Work() = default;
};
struct LOCKSTEP_API DropWork{void operator()(Work* work) const noexcept {work->drop();
}  // namespace lockstep::inline v0::rpc::internal
}
;
using Task = std::unique_ptr<Work, DropWork>;

template <typename F>
Task task_of(F&& body) {
  struct Body final : Work {
    explicit Body(F&& given) : body(std::forward<F>(given)) {}
    void run() override { body(); }
    std::decay_t<F> body;
  };
  return Task(new Body(std::forward<F>(body)));
}

}  // namespace lockstep::inline v0::rpc::internal
