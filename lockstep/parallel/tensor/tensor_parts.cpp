#include "lockstep/parallel/tensor/tensor_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/model/lm_experts.h"
#include "lockstep/optim/gradient_norm.h"

namespace lockstep::inline v0 {
namespace {

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::string text_of(at::IntArrayRef shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

[[noreturn]] void refuse_shape(const std::string& name, at::IntArrayRef found,
                               const std::vector<int64_t>& expected) {
  throw InvalidArgument("TensorParts: '" + name + "' is " + text_of(found) + "; this part's is " +
                        text_of(expected) + ", contiguous");
}

}  // namespace

TensorParts::TensorParts(Communicator comm, TensorPlan plan, const NamedShapes& whole)
    : comm_(std::move(comm)), plan_(std::move(plan)) {
  plan_.check(whole, comm_.size());
  for (const auto& [name, shape] : whole) {
    names_.push_back(name);
    Place& place = places_[name];
    place.shape = shape;
    for (int64_t part = 0; part < comm_.size(); ++part)
      place.slices.push_back(plan_.slice(name, shape, part, comm_.size()));
  }
}

const TensorParts::Place& TensorParts::place_of(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end())
    throw InvalidArgument("TensorParts: the whole model has no parameter '" + name + "'");
  return found->second;
}

PartSlice TensorParts::slice(const std::string& name) const {
  return own(place_of(name));
}

PlacedParameters TensorParts::places() const {
  PlacedParameters places;
  for (const auto& [name, place] : places_) {
    const PartSlice& slice = own(place);
    if (slice.empty()) continue;
    PlacedParameter& placed = places[name];
    placed = {.shape = place.shape,
              .box = {},
              .writes = slice.whole() ? comm_.rank() == 0 : !slice.repeated};
    if (slice.whole()) continue;
    placed.box = {std::vector<int64_t>(place.shape.size(), 0), place.shape};
    placed.box.begin[static_cast<size_t>(slice.dim)] = slice.begin;
    placed.box.end[static_cast<size_t>(slice.dim)] = slice.end;
  }
  return places;
}

void TensorParts::check(const NamedTensors& mine) const {
  for (const auto& [name, tensor] : mine) {
    const Place& place = place_of(name);
    if (own(place).empty())
      throw InvalidArgument("TensorParts: '" + name + "' is another part's; this is part " +
                            std::to_string(comm_.rank()));
    const std::vector<int64_t> expected = shape_of(own(place), place.shape);
    if (tensor.sizes() != at::IntArrayRef(expected) || !tensor.is_contiguous())
      refuse_shape(name, tensor.sizes(), expected);
  }
}

void TensorParts::fill(const NamedTensors& mine, const ParameterParts& values) const {
  check(mine);
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : mine) {
    const Place& place = place_of(name);
    const PartSlice& slice = own(place);
    const at::Tensor tensor = parameter.detach();
    if (slice.dim == 1) {
      for (int64_t row = 0; row < tensor.size(0); ++row)
        values(name, row * place.shape[1] + slice.begin, tensor.select(0, row));
      continue;
    }
    const int64_t before =
        slice.whole() ? 0 : slice.begin * (elements(place.shape) / place.shape[0]);
    values(name, before, tensor.view({-1}));
  }
}

void TensorParts::copy(const NamedTensors& mine, const NamedTensors& whole) const {
  check(mine);
  std::map<std::string, at::Tensor> sources;
  for (const auto& [name, tensor] : whole) sources[name] = tensor;
  for (const auto& [name, parameter] : mine) {
    const at::Tensor& source = sources[name];
    const Place& place = place_of(name);
    if (!source.defined() || source.sizes() != at::IntArrayRef(place.shape))
      throw InvalidArgument("TensorParts: the whole model's '" + name + "' is " +
                            (source.defined() ? text_of(source.sizes()) : "missing") +
                            "; it must be " + text_of(place.shape));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : mine) {
    const PartSlice& slice = own(place_of(name));
    const at::Tensor& source = sources[name];
    parameter.detach().copy_(
        slice.whole() ? source : source.narrow(slice.dim, slice.begin, slice.end - slice.begin));
  }
}

double TensorParts::gradient_norm(const NamedTensors& mine) {
  check(mine);
  std::vector<at::Tensor> divided, whole;
  for (const auto& [name, parameter] : mine) {
    const PartSlice& slice = own(place_of(name));
    if (parameter.grad().defined() && !slice.repeated)
      (slice.whole() ? whole : divided).push_back(parameter.grad());
  }
  const at::Tensor sum = optim::sum_of_squares_on(comm_.device(), divided);
  comm_.iall_reduce(sum, ReduceOp::kSum, call_note("tensor: gradient norm")).wait();
  return std::sqrt(sum.add_(optim::sum_of_squares_on(comm_.device(), whole)).item<double>());
}

double TensorParts::clip_gradients(const NamedTensors& mine, double max_norm) {
  optim::check_max_norm("TensorParts", max_norm);
  const double norm = gradient_norm(mine);
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : mine)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  optim::clip_by_norm(gradients, norm, max_norm);
  return norm;
}

NamedTensors TensorParts::gather(const NamedTensors& mine, int root) {
  check(mine);
  if (root < 0 || root >= comm_.size())
    throw InvalidArgument("TensorParts: gather to rank " + std::to_string(root) + " of " +
                          std::to_string(comm_.size()));
  const at::NoGradGuard no_grad;
  const bool is_root = comm_.rank() == root;
  const std::map<std::string, at::Tensor> here(mine.begin(), mine.end());
  NamedTensors all;
  for (const std::string& name : names_) {
    const Place& place = places_.at(name);
    const auto found = here.find(own(place).empty() ? counterpart(name) : name);
    if (found == here.end()) continue;
    const at::Tensor tensor = found->second.detach();
    if (own(place).whole()) {
      if (is_root) all.emplace_back(name, tensor.clone());
      continue;
    }
    std::vector<int64_t> counts;
    for (const PartSlice& slice : place.slices)
      counts.push_back(slice.repeated ? 0 : elements(shape_of(slice, place.shape)));
    const int64_t sent = counts[static_cast<size_t>(comm_.rank())];
    const at::Tensor flat =
        is_root ? at::empty({elements(place.shape)}, tensor.options()) : at::Tensor();
    comm_.igatherv(flat, tensor.view({-1}).narrow(0, 0, sent), counts, root).wait();
    if (!is_root) continue;
    if (own(place).dim == 0) {
      all.emplace_back(name, flat.view(place.shape));
      continue;
    }
    std::vector<at::Tensor> parts = flat.split_with_sizes(counts);
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i] = parts[i].view(shape_of(place.slices[i], place.shape));
    all.emplace_back(name, at::cat(parts, own(place).dim));
  }
  return all;
}

std::string TensorParts::counterpart(const std::string& name) const {
  constexpr std::string_view kExperts = ".experts.";
  const size_t begin = name.find(kExperts) + kExperts.size(), end = name.find('.', begin);
  const TensorRule* const rule = plan_.rule_of(name.substr(0, name.rfind('.')));
  const int64_t each = rule->heads / comm_.size();
  const int64_t own = comm_.rank() * each + expert_of(name) % each;
  return name.substr(0, begin) + std::to_string(own) + name.substr(end);
}

TensorParts lm_tensor_parts(const LmConfig& config, const Communicator& comm) {
  return TensorParts(comm, lm_tensor_plan(config), lm_parameter_shapes(config));
}
TensorParts lm_expert_parts(const LmConfig& config, const Communicator& comm) {
  return TensorParts(comm, lm_expert_plan(config), lm_parameter_shapes(config));
}

}  // namespace lockstep::inline v0
