// A small network, its batches and the results of one process, for the tests of this room. It uses
// no random numbers, since ranks that are threads share their generator.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>

namespace lockstep::inline v0::ddp_test_support {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 4));
    spare = register_module("spare", torch::nn::Linear(4, 4));
    steps = register_buffer("steps", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& x, bool use_spare = false) {
    auto y = second(torch::tanh(first(x)));
    return use_spare ? spare(y) : y;
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, spare{nullptr};
  torch::Tensor steps;
};
TORCH_MODULE(Net);

inline Net make_net(double scale = 1.0) {
  Net net;
  torch::NoGradGuard no_grad;
  double value = 0.0;
  for (auto& p : net->parameters()) {
    p.copy_(torch::linspace(-0.5, 0.5, p.numel()).view(p.sizes()).mul(scale).add(value));
    value += 0.01;
  }
  return net;
}

inline torch::Tensor batch(int64_t rows) {
  return torch::arange(rows * 6).to(torch::kFloat).remainder(11).div(7).view({rows, 6});
}

inline void expect_close(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (!a.defined()) return;
  EXPECT_TRUE(torch::allclose(a, b, 1e-5, 1e-6)) << what << "\n" << a << "\n" << b;
}

// The loss and gradients of one process on the whole batch.
inline Net reference(int64_t rows) {
  Net net = make_net();
  net(batch(rows)).pow(2).mean().backward();
  return net;
}

}  // namespace lockstep::inline v0::ddp_test_support
