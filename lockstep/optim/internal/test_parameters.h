// Parameters and gradients for the tests of this room.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

namespace lockstep::inline v0::optim::test {

// Odd sizes, so that flat memory has padding; one parameter of a single element, one transposed.
inline std::vector<at::Tensor> parameters(at::ScalarType dtype, uint64_t seed = 7) {
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<at::Tensor> result;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{33, 17}, {33}, {1}, {5, 3, 3, 3}, {70, 31}, {}, {1001}}) {
    result.push_back(torch::randn(shape, generator, torch::TensorOptions().dtype(dtype)));
  }
  result.push_back(
      torch::randn({13, 9}, generator, torch::TensorOptions().dtype(dtype)).t().detach());
  for (at::Tensor& tensor : result) tensor.set_requires_grad(true);
  return result;
}

// The gradients of step `step`, as new tensors; equal for equal arguments.
inline std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& like, int step,
                                         double scale = 1) {
  auto generator = at::detail::createCPUGenerator(1000 + static_cast<uint64_t>(step));
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : like) {
    result.push_back(torch::randn(tensor.sizes(), generator, torch::kDouble)
                         .mul_(scale)
                         .to(tensor.scalar_type()));
  }
  return result;
}

// Like a backward: existing gradients are written, others made.
inline void give_gradients(const std::vector<at::Tensor>& parameters,
                           const std::vector<at::Tensor>& gradients) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradients[i].defined()) {
      gradient.reset();
    } else if (gradient.defined()) {
      gradient.copy_(gradients[i]);
    } else {
      gradient = gradients[i].clone();
    }
  }
}

// |a - b| / |b| over all parameters together.
inline double relative_distance(const std::vector<at::Tensor>& a,
                                const std::vector<at::Tensor>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor left = a[i].detach().to(at::kDouble), right = b[i].detach().to(at::kDouble);
    difference += (left - right).square().sum().item<double>();
    size += right.square().sum().item<double>();
  }
  return std::sqrt(difference / size);
}

}  // namespace lockstep::inline v0::optim::test
