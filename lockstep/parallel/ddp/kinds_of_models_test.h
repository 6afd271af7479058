// One network in three forms: a module of libtorch, TorchScript, and a list of named tensors with a
// function. It uses no random numbers, since ranks that are threads share their generator.
#pragma once

#include <torch/script.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/tensor_model.h"

namespace lockstep::inline v0::kinds_of_models_test {

inline NamedTensors initial_parameters() {
  const auto make = [](std::vector<int64_t> shape, double from) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    return torch::linspace(from, 0.6, numel, torch::kDouble).view(shape).set_requires_grad(true);
  };
  return {{"w1", make({6, 8}, -0.5)}, {"b1", make({8}, 0.1)}, {"w2", make({8, 3}, -0.7)}};
}

inline torch::Tensor samples(int64_t rows) {
  return torch::arange(rows * 6).to(torch::kDouble).remainder(11).div(7).view({rows, 6});
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (auto& [name, tensor] : initial_parameters()) register_parameter(name, tensor);
    register_buffer("seen", torch::zeros({1}, torch::kDouble));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto p = parameters();
    return torch::tanh(x.matmul(p[0]) + p[1]).matmul(p[2]);
  }
};
TORCH_MODULE(Net);

inline Net module_net() {
  return Net();
}

inline torch::jit::Module script_net() {
  torch::jit::Module net("Net");
  for (auto& [name, tensor] : initial_parameters())
    net.register_parameter(name, tensor, /*is_buffer=*/false);
  net.register_buffer("seen", torch::zeros({1}, torch::kDouble));
  net.define(R"(
def forward(self, x):
    return torch.tanh(x.matmul(self.w1) + self.b1).matmul(self.w2)
)");
  return net;
}

inline auto list_net() {
  NamedTensors p = initial_parameters();
  const at::Tensor w1 = p[0].second, b1 = p[1].second, w2 = p[2].second;
  return TensorModel(std::move(p),
                     [=](const at::Tensor& x) { return torch::tanh(x.matmul(w1) + b1).matmul(w2); },
                     {{"seen", torch::zeros({1}, torch::kDouble)}});
}

inline at::Tensor output_of(const at::Tensor& output) {
  return output;
}
inline at::Tensor output_of(const c10::IValue& output) {
  return output.toTensor();
}

inline std::vector<at::Tensor> values_of(const NamedTensors& tensors) {
  std::vector<at::Tensor> values;
  for (const auto& entry : tensors) values.push_back(entry.second);
  return values;
}

// The parameters after `steps` steps of SGD in one process on the whole batch.
inline NamedTensors trained_alone(int64_t rows, int steps) {
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    net(samples(rows) + step).pow(2).mean().backward();
    optimizer.step();
  }
  return parameters_of(net);
}

}  // namespace lockstep::inline v0::kinds_of_models_test
