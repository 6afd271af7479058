#include "lockstep/optim/internal/flat_groups.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/memory_settings.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/gradient_home.h"
#include "lockstep/flat/parameter_home.h"

namespace lockstep::inline v0::optim::internal {

std::string place(size_t group, int64_t index) {
  return "parameter " + std::to_string(index) + " of group " + std::to_string(group);
}

namespace {

void check_kind(const at::Tensor& param, size_t group, int64_t index) {
  if (!flat::can_be_flat(param)) {
    throw InvalidArgument(
        "fused optimizer: " + place(group, index) +
        " is undefined, sparse or not floating-point; give it to another optimizer");
  }
  if (!param.is_leaf()) {
    throw InvalidArgument("fused optimizer: " + place(group, index) +
                          " is the result of a computation; optimizers take leaves");
  }
}

// A step reads four buffers at once, and large pages reduce the cost of address translation. The
// kernel provides zeroed pages when they are first touched; if it ignores the advice, they are
// small.
at::Tensor zeros_in_large_pages(int64_t numel, const at::TensorOptions& options) {
  constexpr size_t kPage = size_t{2} << 20;
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  if (options.device().is_cpu() && bytes >= 2 * kPage) {
    const size_t length = bytes + kPage;
    void* const memory =
        ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
      void* first = memory;
      size_t space = length;
      std::align(kPage, bytes, first, space);
      (void)::madvise(first, bytes / kPage * kPage, MADV_HUGEPAGE);
      return at::from_blob(
          first, {numel}, [memory, length](void*) { ::munmap(memory, length); }, options);
    }
  }
  return at::zeros({numel}, options);
}

}  // namespace

at::Tensor Block::shaped(const at::Tensor& buffer, const Slot& slot) {
  return flat::window(buffer, slot.offset, slot.param.sizes(), slot.param.strides());
}

const at::Tensor& Block::state(size_t which) {
  while (states.size() <= which) states.push_back(zeros_in_large_pages(numel, weights.options()));
  return states[which];
}

FlatGroups::FlatGroups(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       bool flat_gradients)
    : flat_gradients_(flat_gradients) {
  check_new(groups, 0);
  for (size_t group = 0; group < groups.size(); ++group) add_group(group, groups[group].params());
}

void FlatGroups::check_new(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                           size_t first) const {
  std::vector<at::Tensor> all;
  std::vector<std::pair<size_t, int64_t>> places;  // group and index of each parameter
  for (size_t group = first; group < groups.size(); ++group) {
    int64_t index = 0;
    for (const at::Tensor& param : groups[group].params()) {
      check_kind(param, group, index);
      all.push_back(param);
      places.emplace_back(group, index);
      ++index;
    }
  }
  for (const Block& block : blocks_) {
    for (const Slot& slot : block.slots) {
      all.push_back(slot.param);
      places.emplace_back(block.group, slot.index);
    }
  }
  if (const auto shared = flat::find_shared_memory(all)) {
    const auto said = [&](size_t i) { return place(places[i].first, places[i].second); };
    throw InvalidArgument("fused optimizer: " + said(shared->first) + " and " +
                          said(shared->second) +
                          " share memory; give a shared tensor once, as one tensor");
  }
}

void FlatGroups::add_group(size_t group, const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  group_sizes_.push_back(parameters.size());
  std::map<std::string, std::vector<int64_t>> devices;
  for (size_t i = 0; i < parameters.size(); ++i)
    devices[parameters[i].device().str()].push_back(static_cast<int64_t>(i));
  for (const auto& [device, indices] : devices) {
    std::vector<flat::TensorSpec> specs;
    for (const int64_t index : indices) {
      const at::Tensor& param = parameters[static_cast<size_t>(index)];
      specs.push_back({param.numel(), param.scalar_type()});
    }
    // One block per dtype. The order and alignment equal those of DDP's buckets, so that gradients
    // there have the same layout as the parameters here.
    constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
    for (const flat::Bucket& bucket : flat::plan_buckets(specs, {kNoLimit, kNoLimit})) {
      Block block;
      block.group = group;
      block.numel = bucket.numel;
      const auto& first = parameters[static_cast<size_t>(indices[bucket.slots.front().tensor])];
      block.weights = zeros_in_large_pages(bucket.numel, first.detach().options());
      if (flat_gradients_)
        block.gradients = zeros_in_large_pages(bucket.numel, block.weights.options());
      for (const auto& place : bucket.slots) {
        Slot slot;
        slot.index = indices[place.tensor];
        slot.param = parameters[static_cast<size_t>(slot.index)];
        slot.offset = place.offset;
        slot.numel = slot.param.numel();
        flat::move_home(slot.param, block.weights, slot.offset);
        block.slots.push_back(std::move(slot));
      }
      blocks_.push_back(std::move(block));
    }
  }
  return_freed_memory();  // where the parameters were
}

void FlatGroups::follow(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (size_t group = 0; group < groups.size() && group < group_sizes_.size(); ++group) {
    if (groups[group].params().size() != group_sizes_[group]) {
      throw InvalidArgument("fused optimizer: group " + std::to_string(group) +
                            " has other parameters than when it was made; add a group instead");
    }
  }
  for (const Block& block : blocks_) {
    for (const Slot& slot : block.slots) {
      if (slot.param.numel() != slot.numel ||
          !flat::is_home(slot.param, block.weights, slot.offset)) {
        throw InvalidArgument("fused optimizer: " + place(block.group, slot.index) +
                              " has been moved since the optimizer was made; make it after "
                              "model->to(...), and only one fused optimizer a parameter");
      }
    }
  }
  if (groups.size() > group_sizes_.size()) {
    check_new(groups, group_sizes_.size());
    for (size_t group = group_sizes_.size(); group < groups.size(); ++group)
      add_group(group, groups[group].params());
  }
}

void FlatGroups::zero_gradients() {
  const at::NoGradGuard no_grad;
  for (Block& block : blocks_) {
    if (!block.gradients.defined()) continue;
    block.gradients.zero_();
    for (Slot& slot : block.slots) {
      at::Tensor& gradient = slot.param.mutable_grad();
      if (!gradient.defined() || !gradient.is_alias_of(block.gradients))
        gradient = Block::shaped(block.gradients, slot);
    }
  }
}

std::vector<torch::optim::OptimizerParamGroup>& keep_options(
    std::vector<torch::optim::OptimizerParamGroup>& groups,
    const std::vector<torch::optim::OptimizerParamGroup>& given) {
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].has_options()) groups[i].set_options(given[i].options().clone());
  }
  return groups;
}

}  // namespace lockstep::inline v0::optim::internal
