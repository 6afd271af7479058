// BackwardWatch: what a backward does to a set of parameters, as it does it: that it has begun,
// each gradient that arrives, that it has ended, and that an earlier one threw on its way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace lockstep::flat {

// A base of what reduces gradients between ranks, owned by a shared_ptr: hooks hold it weakly, a
// backward under way strongly. Used by one thread at a time; the functions below are called on the
// one that runs the backward, and what they throw comes out of backward().
class BackwardWatch : public std::enable_shared_from_this<BackwardWatch> {
 public:
  BackwardWatch() = default;
  virtual ~BackwardWatch() = default;
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  // Watches these from now on; once, by whoever made the shared_ptr.
  void watch(std::span<const at::Tensor> parameters);

  // An event of the backward that runs: gradients call it by themselves. A result's hook may call
  // it earlier, with `outermost`, for it is never that of a backward inside another (a checkpointed
  // part); then backward_ended() comes at the end of the whole. Without that, a backward whose first
  // gradient comes in an inner one ends with the inner one, and what the outer one throws afterwards
  // is not seen.
  void arm(bool outermost = false);

  // backward_failed(), if a backward has thrown since. To be called where the next step begins,
  // perhaps inside another backward.
  void forget_failed_backward();

 protected:
  virtual void backward_began() {}
  // The gradient of parameters[index] has had `passed` added; more than once in a backward where
  // the parameter is used in several checkpointed parts. Who throws here has put its own things in
  // order: backward_failed() is not called for it.
  virtual void gradient_arrived(size_t index, const at::Tensor& passed) = 0;
  virtual void backward_ended() {}
  // The backward that began last never came to its end. Called before the next begins.
  virtual void backward_failed() {}

 private:
  void end();
  bool failed() const { return began_ && running_.expired(); }

  std::vector<std::shared_ptr<void>> hooks_;
  bool began_ = false;
  int task_ = -1;                // autograd's graph task, to which end() belongs
  std::weak_ptr<void> running_;  // lives as long as that task
};

// For a node of autograd that runs a backward inside its own: while it lives, the outermost of these on
// the thread stands for the backward that the node itself is part of, so that what inner ones begin ends
// with that one.
class OuterBackward {
 public:
  OuterBackward();
  ~OuterBackward();
  OuterBackward(const OuterBackward&) = delete;
  OuterBackward& operator=(const OuterBackward&) = delete;

 private:
  bool outermost_;
};

}  // namespace lockstep::flat
