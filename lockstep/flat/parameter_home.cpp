#include "lockstep/flat/parameter_home.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "lockstep/flat/gradient_home.h"
#include "lockstep/hooks/layer_hook.h"

namespace lockstep::inline v0::flat {

bool can_be_flat(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided &&
         at::isFloatingType(tensor.scalar_type());
}

std::optional<std::pair<size_t, size_t>> find_shared_memory(std::span<const at::Tensor> tensors) {
  using Span = std::tuple<uintptr_t, uintptr_t, size_t>;
  std::vector<Span> spans;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (tensor.numel() == 0) continue;
    int64_t last = 0;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim)
      last += (tensor.size(dim) - 1) * tensor.stride(dim);
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    spans.emplace_back(begin, begin + static_cast<uintptr_t>((last + 1) * tensor.element_size()),
                       i);
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) {
    if (std::get<0>(spans[i]) < std::get<1>(spans[i - 1]))
      return std::pair(std::get<2>(spans[i - 1]), std::get<2>(spans[i]));
  }
  return std::nullopt;
}

namespace {

at::Tensor home_of(const at::Tensor& values, const at::Tensor& flat, int64_t offset) {
  return values.is_non_overlapping_and_dense()
             ? window(flat, offset, values.sizes(), values.strides())
             : window(flat, offset, values.sizes());
}

}  // namespace

void move_home(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = parameter.detach();
  const at::Tensor home = home_of(values, flat, offset);
  home.copy_(values);
  hooks::set_data(parameter, home);
}

void adopt_home(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset) {
  const at::NoGradGuard no_grad;
  hooks::set_data(parameter, home_of(parameter.detach(), flat, offset));
}

bool is_home(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset) {
  if (parameter.numel() == 0) return true;
  return parameter.scalar_type() == flat.scalar_type() &&
         parameter.const_data_ptr() ==
             static_cast<const char*>(flat.const_data_ptr()) + offset * flat.element_size();
}

}  // namespace lockstep::inline v0::flat
