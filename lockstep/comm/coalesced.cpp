#include "lockstep/comm/coalesced.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "lockstep/comm/internal/coalesced_plan.h"
#include "lockstep/comm/internal/communicator_checks.h"
#include "lockstep/comm/internal/communicator_impl.h"

namespace lockstep::inline v0 {
namespace {

using namespace checks;

void check_list(Op op, std::span<const at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) check_tensor(op, tensor, "tensors");
}

void check_reduced_list(Op op, std::span<const at::Tensor> tensors, ReduceOp reduce) {
  check_list(op, tensors);
  for (const at::Tensor& tensor : tensors) check_reduction(op, reduce, tensor);
}

std::vector<std::vector<size_t>> plan_list(std::span<const at::Tensor> tensors) {
  std::vector<CoalescedItem> items;
  items.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    items.push_back(
        {tensor.scalar_type(), static_cast<int64_t>(tensor.nbytes()), tensor.device().type()});
  return plan_coalesced(items, kCoalescedBytes);
}

// Concatenates the tensors' elements.
at::Tensor flatten(std::span<const at::Tensor> tensors, const std::vector<size_t>& group) {
  std::vector<at::Tensor> parts;
  for (const size_t i : group) parts.push_back(tensors[i].reshape({-1}));
  return at::cat(parts);
}

void unflatten(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t n = tensor.numel();
    tensor.copy_(flat.narrow(0, at, n).view(tensor.sizes()));
    at += n;
  }
}

std::vector<at::Tensor> pick(std::span<const at::Tensor> tensors,
                             const std::vector<size_t>& group) {
  std::vector<at::Tensor> picked;
  for (const size_t i : group) picked.push_back(tensors[i]);
  return picked;
}

// The properties that the lists of all ranks must share beyond those of the flat tensor.
CallNote note_of(std::span<const at::Tensor> tensors, const std::vector<size_t>& group) {
  uint64_t hash = group.size();
  const auto mix = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  };
  for (const size_t i : group) {
    mix(static_cast<int64_t>(i));
    mix(tensors[i].dim());
    for (const int64_t size : tensors[i].sizes()) mix(size);
  }
  return {hash, "a coalesced list"};
}

struct Flattened {
  at::Tensor flat;
  std::vector<at::Tensor> tensors;
};

Work all_over(std::vector<Work> works, std::vector<Flattened> flattened) {
  return Work(std::make_shared<Work::State>(std::move(works), [flattened = std::move(flattened)] {
    const at::NoGradGuard no_grad;
    for (const Flattened& one : flattened) unflatten(one.flat, one.tensors);
  }));
}

}  // namespace

void all_reduce_coalesced(Communicator& comm, std::span<const at::Tensor> tensors, ReduceOp op,
                          Communicator::Site site) {
  iall_reduce_coalesced(comm, tensors, op, site).wait();
}

Work iall_reduce_coalesced(Communicator& comm, std::span<const at::Tensor> tensors, ReduceOp op,
                           Communicator::Site site) {
  check_reduced_list(Op::kAllReduce, tensors, op);
  const at::NoGradGuard no_grad;
  std::vector<Work> works;
  std::vector<Flattened> flattened;
  for (const std::vector<size_t>& group : plan_list(tensors)) {
    if (group.size() == 1) {
      works.push_back(comm.iall_reduce(tensors[group[0]], op, site));
      continue;
    }
    const at::Tensor flat = flatten(tensors, group);
    works.push_back(comm.iall_reduce(flat, op, note_of(tensors, group), site));
    flattened.push_back({flat, pick(tensors, group)});
  }
  return all_over(std::move(works), std::move(flattened));
}

void broadcast_coalesced(Communicator& comm, std::span<const at::Tensor> tensors, int root,
                         Communicator::Site site) {
  check_list(Op::kBroadcast, tensors);
  check_rank(Op::kBroadcast, "root", root, comm.size());
  const at::NoGradGuard no_grad;
  std::vector<Work> works;
  std::vector<Flattened> flattened;
  for (const std::vector<size_t>& group : plan_list(tensors)) {
    if (group.size() == 1) {
      works.push_back(comm.ibroadcast(tensors[group[0]], root, site));
      continue;
    }
    const bool is_root = comm.rank() == root;
    const std::vector<at::Tensor> members = pick(tensors, group);
    int64_t total = 0;
    for (const at::Tensor& tensor : members) total += tensor.numel();
    const at::Tensor flat =
        is_root ? flatten(tensors, group) : at::empty({total}, members[0].options());
    works.push_back(comm.ibroadcast(flat, root, site));
    if (!is_root) flattened.push_back({flat, members});
  }
  all_over(std::move(works), std::move(flattened)).wait();
}

std::vector<at::Tensor> all_gather_coalesced(Communicator& comm,
                                             std::span<const at::Tensor> tensors,
                                             Communicator::Site site) {
  check_list(Op::kAllGather, tensors);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> results(tensors.size());
  for (const std::vector<size_t>& group : plan_list(tensors)) {
    if (group.size() == 1) {
      results[group[0]] = comm.all_gather(tensors[group[0]], site);
      continue;
    }
    // Row r holds the data of rank r.
    const at::Tensor rows = comm.all_gather(flatten(tensors, group), site).view({comm.size(), -1});
    int64_t at = 0;
    for (const size_t i : group) {
      const Rows shape(tensors[i]);
      const int64_t n = tensors[i].numel();
      results[i] = rows.narrow(1, at, n).contiguous().view(shape.shape(shape.rows * comm.size()));
      at += n;
    }
  }
  return results;
}

std::vector<at::Tensor> reduce_scatter_coalesced(Communicator& comm,
                                                 std::span<const at::Tensor> tensors, ReduceOp op,
                                                 Communicator::Site site) {
  check_reduced_list(Op::kReduceScatter, tensors, op);
  for (const at::Tensor& tensor : tensors) divide_rows(Op::kReduceScatter, tensor, comm.size());
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> results(tensors.size());
  for (const std::vector<size_t>& group : plan_list(tensors)) {
    if (group.size() == 1) {
      results[group[0]] = comm.reduce_scatter(tensors[group[0]], op, site);
      continue;
    }
    // Row r holds all tensors' parts for rank r.
    std::vector<at::Tensor> columns;
    for (const size_t i : group)
      columns.push_back(tensors[i].reshape({comm.size(), tensors[i].numel() / comm.size()}));
    const at::Tensor mine = comm.reduce_scatter(at::cat(columns, 1).view({-1}), op, site);
    int64_t at = 0;
    for (const size_t i : group) {
      const Rows shape(tensors[i]);
      const int64_t n = tensors[i].numel() / comm.size();
      // Each result is a tensor of its own, so keeping one result does not keep all of them.
      results[i] = mine.narrow(0, at, n).clone().view(shape.shape(shape.rows / comm.size()));
      at += n;
    }
  }
  return results;
}

}  // namespace lockstep::inline v0
