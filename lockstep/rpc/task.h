// Task: work for an agent's thread. Not for programs.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep::rpc::internal {

// Work to run once; it may own objects that cannot be copied.
class Work {
 public:
  virtual void run() = 0;
  // It is no longer needed. A part of a larger object releases that object.
  virtual void drop() noexcept { delete this; }

 protected:
  virtual ~Work() = default;
};
struct DropWork {
  void operator()(Work* work) const noexcept { work->drop(); }
};
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

}  // namespace lockstep::rpc::internal
