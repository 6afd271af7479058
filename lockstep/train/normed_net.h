// A network with BatchNorm for the tests of this room: on several ranks its running statistics are
// each rank's own while it trains.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <utility>

namespace lockstep::inline v0::train_test {

// A network for points in a plane, in float64; `head` takes the normed points.
struct NormedNetImpl : torch::nn::Module {
  explicit NormedNetImpl(torch::nn::Linear head) {
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
    out = register_module("out", std::move(head));
    norm->to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return out(norm(x)); }
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear out = nullptr;
};
TORCH_MODULE(NormedNet);

}  // namespace lockstep::inline v0::train_test
