#include "lockstep/parallel/logical/tree_sum.h"

#include <bit>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

void TreeSum::add(at::Tensor leaf) {
  ++leaves_;
  Node node{0, std::move(leaf)};
  while (!open_.empty() && open_.back().level == node.level) {
    open_.back().sum.add_(node.sum);  // left and right: a sum of two does not depend on the order
    spare_.push_back(std::move(node.sum));
    node = {node.level + 1, std::move(open_.back().sum)};
    open_.pop_back();
  }
  open_.push_back(std::move(node));
}

at::Tensor TreeSum::take() {
  if (open_.size() != 1)
    throw InvalidArgument("TreeSum: " + std::to_string(leaves_) +
                          " leaves are no whole tree; give a power of two");
  at::Tensor sum = std::move(open_.back().sum);
  open_.clear();
  leaves_ = 0;
  return sum;
}

void TreeSum::clear() {
  for (Node& node : open_) spare_.push_back(std::move(node.sum));
  open_.clear();
  leaves_ = 0;
}

at::Tensor TreeSum::spare() {
  if (spare_.empty()) return {};
  at::Tensor tensor = std::move(spare_.back());
  spare_.pop_back();
  return tensor;
}

void tree_all_reduce(Communicator& comm, const at::Tensor& mine) {
  const int64_t ranks = comm.size();
  if (!std::has_single_bit(static_cast<uint64_t>(ranks)) || mine.dim() != 1 ||
      mine.numel() % ranks != 0)
    throw InvalidArgument(
        "tree_all_reduce: a power of two of ranks shares a multiple of as many "
        "elements, not " +
        std::to_string(ranks) + " ranks " + std::to_string(mine.numel()));
  if (ranks == 1 || mine.numel() == 0) return;
  const at::Tensor parts = comm.all_to_all(mine).view({ranks, -1});
  for (int64_t apart = 1; apart < ranks; apart *= 2) {
    for (int64_t left = 0; left < ranks; left += 2 * apart)
      parts.select(0, left).add_(parts.select(0, left + apart));
  }
  comm.iall_gather(mine, parts.select(0, 0)).wait();
}

}  // namespace lockstep::inline v0
