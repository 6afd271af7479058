// A small network and its data for the tests of this room. It uses no random numbers, since ranks
// that are threads share their generator.
#pragma once

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <vector>

#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0::zero_test {

inline constexpr int64_t kRows = 12;  // of a batch of all ranks: divisible by 1, 2, 3 and 4

// Odd sizes, so that buckets have padding; a transposed parameter; a frozen one.
class TestNetImpl : public torch::nn::Module {
 public:
  explicit TestNetImpl(at::ScalarType dtype = at::kDouble, bool batch_norm = false) {
    at::set_num_threads(1);  // ranks with a pool each would wait for each other
    const at::NoGradGuard no_grad;
    first_ = register_module("first", torch::nn::Linear(7, 13));
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({13})));
    if (batch_norm) batch_ = register_module("batch", torch::nn::BatchNorm1d(13));
    second_ = register_module("second", torch::nn::Linear(13, 5));
    scale_ = register_parameter("scale", torch::empty({5, 5}));
    shift_ = register_parameter("shift", torch::empty({1, 5}), /*requires_grad=*/false);
    to(dtype);
    int index = 0;
    for (at::Tensor& p : parameters()) {
      p.copy_(torch::arange(p.numel(), at::kDouble)
                  .mul(0.7)
                  .add(index++)
                  .sin()
                  .mul(0.4)
                  .view(p.sizes()));
    }
    second_->weight.set_data(second_->weight.detach().t().contiguous().t());
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = norm_(torch::tanh(first_(x)));
    if (batch_) h = batch_(h);
    return second_(h).matmul(scale_) + shift_;
  }

 private:
  torch::nn::Linear first_{nullptr}, second_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::BatchNorm1d batch_{nullptr};
  at::Tensor scale_, shift_;
};
TORCH_MODULE(TestNet);

inline at::Tensor inputs(int step, at::ScalarType dtype = at::kDouble) {
  return torch::arange(kRows * 7, at::kDouble)
      .add(step * 31)
      .mul(0.37)
      .sin()
      .view({kRows, 7})
      .to(dtype);
}

inline at::Tensor targets(int step, at::ScalarType dtype = at::kDouble) {
  return torch::arange(kRows * 5, at::kDouble)
      .add(step * 17)
      .mul(0.21)
      .cos()
      .view({kRows, 5})
      .to(dtype);
}

// The part `part` of `parts` of a batch's rows.
inline at::Tensor rows_of(const at::Tensor& batch, int part, int parts) {
  return batch.slice(0, part * kRows / parts, (part + 1) * kRows / parts);
}

template <typename Model>
at::Tensor loss_of(Model& model, int step, int part = 0, int parts = 1,
                   at::ScalarType dtype = at::kDouble) {
  return torch::nn::functional::mse_loss(model(rows_of(inputs(step, dtype), part, parts)),
                                         rows_of(targets(step, dtype), part, parts));
}

// The trained parameters, by name.
inline NamedTensors named_trained(TestNet& net) {
  NamedTensors result;
  for (const auto& [name, tensor] : to_named_tensors(net->named_parameters())) {
    if (tensor.requires_grad()) result.emplace_back(name, tensor);
  }
  return result;
}

// The trained parameters.
template <typename Model>
std::vector<at::Tensor> trained(Model& model) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& p : model->parameters()) {
    if (p.requires_grad()) result.push_back(p);
  }
  return result;
}

inline std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

// The largest difference, relative to 1 and the tensor's largest element.
inline double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const at::Tensor left = a[i].detach().to(at::kDouble), right = b[i].detach().to(at::kDouble);
    largest = std::max(largest, (left - right).abs().max().item<double>() /
                                    (1 + right.abs().max().item<double>()));
  }
  return largest;
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].detach().equal(b[i].detach())) return false;
  }
  return true;
}

}  // namespace lockstep::inline v0::zero_test
