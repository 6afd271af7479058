// BackwardWatch: reports what a backward does to a set of parameters: that it has begun, each
// gradient that arrives, that it has ended, and that an earlier one threw on its way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace lockstep::inline v0::flat {

// A base of classes that reduce gradients between ranks, owned by a shared_ptr: hooks hold it
// weakly, a running backward strongly. The functions below are called on the thread that runs the
// backward, and their exceptions leave backward().
// Thread-safety: one thread at a time.
class BackwardWatch : public std::enable_shared_from_this<BackwardWatch> {
 public:
  BackwardWatch() = default;
  virtual ~BackwardWatch() = default;
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  // Watches these parameters from now on. Called once, by the code that made the shared_ptr.
  void watch(std::span<const at::Tensor> parameters);

  // An event of the running backward; gradients call it by themselves. A result's hook may call it
  // earlier, with `outermost`, since it never belongs to a backward inside another (a checkpointed
  // part); then backward_ended() comes at the end of the whole. Without that, a backward whose
  // first gradient arrives in an inner one ends with the inner one, and later exceptions of the
  // outer one are not seen.
  void arm(bool outermost = false);

  // Calls backward_failed() if a backward has thrown since. Called where the next step begins,
  // perhaps inside another backward.
  void forget_failed_backward();

 protected:
  virtual void backward_began() {}
  // `passed` has been added to the gradient of parameters[index]; called more than once in a
  // backward where the parameter is used in several checkpointed parts. An override that throws
  // must have cleaned up: backward_failed() is not called for it.
  virtual void gradient_arrived(size_t index, const at::Tensor& passed) = 0;
  virtual void backward_ended() {}
  // The last backward did not reach its end. Called before the next begins.
  virtual void backward_failed() {}

 private:
  void end();
  bool failed() const { return began_ && running_.expired(); }

  std::vector<std::shared_ptr<void>> hooks_;
  bool began_ = false;
  int task_ = -1;                // autograd's graph task, to which end() belongs
  std::weak_ptr<void> running_;  // lives as long as that task
};

// For a node of autograd that runs a backward inside its own. While it lives, the outermost of
// these on the thread stands for the backward that the node itself is part of, so that watches that
// inner backwards begin end with that one.
class OuterBackward {
 public:
  OuterBackward();
  ~OuterBackward();
  OuterBackward(const OuterBackward&) = delete;
  OuterBackward& operator=(const OuterBackward&) = delete;

 private:
  bool outermost_;
};

}  // namespace lockstep::inline v0::flat
