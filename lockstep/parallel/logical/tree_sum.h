// Sums along one fixed binary tree, independent of which rank has which leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Adds tensors that arrive one after another, as the leaves of a binary tree from left to right:
// the first and the second, the third and the fourth, then those two sums, and so on.
// Floating-point addition depends on the order; this order is the tree's alone. Holds at most one
// tensor per level.
class LOCKSTEP_API TreeSum {
 public:
  // `leaf`: 1-D; all have one size and dtype. The sum takes it over and adds to it.
  void add(at::Tensor leaf);
  // The number of leaves so far.
  int64_t leaves() const { return leaves_; }
  // The sum of a power of two of leaves; the tree is empty afterwards.
  // Throws: InvalidArgument for another number.
  at::Tensor take();
  // Removes all leaves. Their memory can be reused for leaves.
  void clear();
  // Takes memory that the sum no longer needs (undefined: none); and gives it memory to use.
  at::Tensor spare();
  void give(at::Tensor memory) { spare_.push_back(std::move(memory)); }

 private:
  struct Node {
    int level = 0;
    at::Tensor sum;
  };
  std::vector<Node> open_;  // left subtrees that wait for their right ones
  std::vector<at::Tensor> spare_;
  int64_t leaves_ = 0;
};

// Sums `mine`, 1-D, of all ranks along the same tree, in which rank r's is the r-th subtree from
// the left; the number of ranks is a power of two. It is elementwise, so the bits do not depend on
// the number of ranks: (a + b) + (c + d), on one rank, two or four. Every rank sends and receives
// as much as in an all_reduce: parts by all_to_all, which one rank adds, and all_gather. In place;
// numel is a multiple of the number of ranks.
// Collective: all ranks call it.
// Throws: InvalidArgument for another number.
LOCKSTEP_API void tree_all_reduce(Communicator& comm, const at::Tensor& mine);

}  // namespace lockstep::inline v0
