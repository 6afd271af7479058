// GradientPlacement: makes backward write gradients directly to their places in flat buffers, so
// that they need not be copied there.
//
// Autograd gives a parameter without a gradient the tensor that the last operator of its backward
// has allocated. Here that allocation itself gets the parameter's place in a flat buffer: the
// allocations of a backward are counted by size, and the k-th of n bytes gets the place of the
// parameter that kept the k-th of n bytes in the backward before. A backward that takes another
// path is just as right, but slower: a place that was given to a tensor that lives on is
// `occupied`, and the gradient for it lies elsewhere.
//
// Works on CPU tensors, through a wrapper of libtorch's CPU allocator that the first
// GradientPlacement of a process installs; a program that installs its own allocator afterwards
// gets copies again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::flat {

// Thread-safety: one thread at a time, that of the backward; tensors may be freed on any thread.
class LOCKSTEP_API GradientPlacement {
 public:
  // For parameters known by index, with gradients of these sizes; 0: never watched.
  explicit GradientPlacement(std::vector<size_t> bytes);
  ~GradientPlacement();
  GradientPlacement(const GradientPlacement&) = delete;
  GradientPlacement& operator=(const GradientPlacement&) = delete;

  // The place of the gradient: contiguous memory of its size, of any shape. The memory lives as
  // long as a tensor lies in it. Undefined: no place any more.
  void set_place(size_t index, const at::Tensor& memory);

  // A backward begins on this thread; it may end on any.
  void begin();
  void end() noexcept;
  bool watching() const;  // between begin() and end()

  // Whether the gradient may be placed in this backward. False at first, and again after begin():
  // call it for each parameter that awaits a gradient and has none.
  void expect(size_t index, bool awaited);

  // `gradient` is the parameter's current one: the place of its allocation is remembered for the
  // next backward. Called when it arrives.
  void arrived(size_t index, const at::Tensor& gradient);

  // Whether a tensor lies in the place.
  bool occupied(size_t index) const;
  // Gives all tensors that share the storage of `gradient`, which lies in its place, a copy
  // elsewhere; the place keeps the values.
  static void vacate(const at::Tensor& gradient);

 private:
  class Plan;
  std::shared_ptr<Plan> plan_;
};

}  // namespace lockstep::inline v0::flat
