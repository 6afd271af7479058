// Sums along one fixed binary tree, whoever holds its leaves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// Adds tensors that come one after another, as the leaves of a binary tree from left to right: the
// first and the second, the third and the fourth, then those two sums, and so on. Floating-point
// addition depends on the order; this order is the tree's alone. Holds one tensor a level at most.
class TreeSum {
 public:
  // `leaf`: 1-D; all of one size and dtype. Taken over, and added to.
  void add(at::Tensor leaf);
  // The number of leaves so far.
  int64_t leaves() const { return leaves_; }
  // The sum of a power of two of leaves. Then there are none. Throws InvalidArgument for another
  // number.
  at::Tensor take();
  // As if there had been none. Gives back memory to be used for leaves.
  void clear();
  // Memory that the sum no longer needs, or undefined; and memory that it may have.
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

// Sums `mine`, 1-D, of all ranks along the same tree, of which rank r's is the r-th subtree from the
// left; the number of ranks is a power of two. Elementwise, so the bits do not depend on the number
// of ranks: (a + b) + (c + d), whether on one rank, two or four. Every rank sends and receives what
// an all_reduce does: parts by all_to_all, which one rank adds up, and all_gather. In place; numel is
// a multiple of the number of ranks. Collective. Throws InvalidArgument for another number.
void tree_all_reduce(Communicator& comm, const at::Tensor& mine);

}  // namespace lockstep
