// Birthplaces: gradients that backward writes where they are wanted, so that nobody copies them
// there.
//
// Autograd gives a parameter without a gradient the tensor that the last operator of its backward
// has allocated. Here that allocation itself is given the parameter's place in a flat buffer: the
// allocations of a backward are counted by size, and the k-th of n bytes is given the place of the
// parameter that kept the k-th of n bytes in the backward before. A backward that goes another way
// is as right as before, but slower: a place that was given to a tensor which lives on is
// `occupied`, and what was meant for it lies elsewhere.
//
// Works on CPU tensors, through a wrapper of libtorch's CPU allocator that the first Birthplaces of
// a process installs; a program that puts its own allocator there afterwards gets copies again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace lockstep::flat {

// Used by one thread at a time, that of the backward, but for the tensors' own ends.
class Birthplaces {
 public:
  // Of so many parameters, known by index, with gradients of so many bytes; 0: never watched.
  explicit Birthplaces(std::vector<size_t> bytes);
  ~Birthplaces();
  Birthplaces(const Birthplaces&) = delete;
  Birthplaces& operator=(const Birthplaces&) = delete;

  // Where the gradient is to be born: contiguous memory of its size, of any shape. Its memory lives
  // as long as a tensor lies in it. Undefined: nowhere any more.
  void set_place(size_t index, const at::Tensor& memory);

  // A backward begins on this thread; ends, on any.
  void begin();
  void end() noexcept;
  bool watching() const;

  // Whether the gradient may be born in its place in this backward. False at first, and false again
  // after begin(): say so for each parameter that has no gradient and awaits one.
  void expect(size_t index, bool awaited);

  // `gradient` is what the parameter has now: where it was allocated is remembered for the next
  // backward. To be called when it arrives.
  void arrived(size_t index, const at::Tensor& gradient);

  // Whether a tensor lives in the place.
  bool occupied(size_t index) const;
  // Gives everybody who shares the storage of `gradient`, which was born in its place, a copy
  // elsewhere; the place keeps the values.
  static void vacate(const at::Tensor& gradient);

 private:
  class Plan;
  std::shared_ptr<Plan> plan_;
};

}  // namespace lockstep::flat
