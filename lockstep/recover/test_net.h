// The network of the tests that kill ranks, here and in train: it has every kind of state that a
// step changes.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include <cstdint>

namespace lockstep::inline v0::recover_test {

// Parameters, a random stream (dropout), running means. It has `width` inputs and 3 classes.
struct TestNetImpl : torch::nn::Module {
  explicit TestNetImpl(int64_t width) {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(width, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    dropout = register_module("dropout", torch::nn::Dropout(0.25));
    last = register_module("last", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return last(dropout(torch::relu(norm(first(x))))); }

  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(TestNet);

}  // namespace lockstep::inline v0::recover_test
