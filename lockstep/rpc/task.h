// Task: something that an agent's thread will run. Not for programs.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep::rpc::internal {

// Something to run once; may hold what cannot be copied.
class Work {
 public:
  virtual ~Work() = default;
  virtual void run() = 0;
};
using Task = std::unique_ptr<Work>;

template <typename F>
Task task_of(F&& body) {
  struct Body final : Work {
    explicit Body(F&& given) : body(std::forward<F>(given)) {}
    void run() override { body(); }
    std::decay_t<F> body;
  };
  return std::make_unique<Body>(std::forward<F>(body));
}

}  // namespace lockstep::rpc::internal
