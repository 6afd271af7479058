#include "lockstep/parallel/expert/expert_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/model/lm_experts.h"
#include "lockstep/optim/gradient_norm.h"

namespace lockstep {
namespace {

constexpr const char* kExperts = ".experts.";

// "a.experts.3.w1.weight" of expert 5: "a.experts.5.w1.weight".
std::string renamed(const std::string& name, int64_t expert) {
  const size_t begin = name.find(kExperts) + std::string(kExperts).size();
  return name.substr(0, begin) + std::to_string(expert) + name.substr(name.find('.', begin));
}

}  // namespace

ExpertParts::ExpertParts(const LmConfig& config, Communicator comm)
    : each_(0), comm_(std::move(comm)) {
  lockstep::check(config);
  if (!config.has_experts())
    throw InvalidArgument("ExpertParts: the model has no experts; set num_local_experts");
  if (config.num_local_experts % comm_.size() != 0)
    throw InvalidArgument("ExpertParts: " + std::to_string(config.num_local_experts) +
                          " experts do not divide among " + std::to_string(comm_.size()) +
                          " ranks; take a number of ranks that divides them");
  each_ = config.num_local_experts / comm_.size();
}

void ExpertParts::check(const NamedTensors& mine) const {
  for (const auto& item : mine) {
    const int64_t expert = expert_of(item.first);
    if (expert >= 0 && expert / each_ != comm_.rank())
      throw InvalidArgument("ExpertParts: '" + item.first + "' is rank " +
                            std::to_string(expert / each_) + "'s, and this is rank " +
                            std::to_string(comm_.rank()));
  }
}

double ExpertParts::gradient_norm(const NamedTensors& mine) {
  check(mine);
  std::vector<at::Tensor> own, common;
  for (const auto& [name, parameter] : mine)
    if (parameter.grad().defined())
      (is_expert_parameter(name) ? own : common).push_back(parameter.grad());
  const at::Tensor sum = optim::sum_of_squares_on(comm_.device(), own);
  comm_.iall_reduce(sum, ReduceOp::kSum, call_note("expert: gradient norm")).wait();
  return std::sqrt(sum.add_(optim::sum_of_squares_on(comm_.device(), common)).item<double>());
}

double ExpertParts::clip_gradients(const NamedTensors& mine, double max_norm) {
  optim::check_max_norm("ExpertParts", max_norm);
  const double norm = gradient_norm(mine);
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : mine)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  optim::clip_by_norm(gradients, norm, max_norm);
  return norm;
}

NamedTensors ExpertParts::gather(const NamedTensors& mine, int root) {
  check(mine);
  if (root < 0 || root >= comm_.size())
    throw InvalidArgument("ExpertParts: gather to rank " + std::to_string(root) + " of " +
                          std::to_string(comm_.size()));
  const at::NoGradGuard no_grad;
  const bool is_root = comm_.rank() == root;
  // Sorted by where a layer's experts begin, then by expert, then by place in it.
  struct Found {
    std::tuple<size_t, int64_t, size_t> place;
    std::string name;
    at::Tensor tensor;
  };
  std::vector<Found> found;
  size_t experts_begin = 0;
  bool in_experts = false;
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto& [name, parameter] = mine[i];
    const at::Tensor tensor = parameter.detach().contiguous();
    const int64_t expert = expert_of(name);
    if (expert < 0) {
      in_experts = false;
      if (is_root) found.push_back({{i, 0, 0}, name, tensor.clone()});
      continue;
    }
    if (!std::exchange(in_experts, true)) experts_begin = i;
    std::vector<int64_t> shape = tensor.sizes().vec();
    shape.insert(shape.begin(), comm_.size());
    const at::Tensor all = is_root ? at::empty(shape, tensor.options()) : at::Tensor();
    comm_.igather(all, tensor.unsqueeze(0), root).wait();
    for (int64_t rank = 0; is_root && rank < comm_.size(); ++rank) {
      const int64_t theirs = rank * each_ + expert % each_;
      found.push_back({{experts_begin, theirs, i}, renamed(name, theirs), all[rank].clone()});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.place < b.place; });
  NamedTensors whole;
  for (Found& one : found) whole.emplace_back(std::move(one.name), std::move(one.tensor));
  return whole;
}

}  // namespace lockstep
