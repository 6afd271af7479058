// ZeroOptimizer for TorchScript and for a list of named tensors.
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <functional>

#include "lockstep/flat/named_tensors.h"
#include "lockstep/optim/adam.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::zero_models_test {
namespace {

constexpr int kSteps = 6;

NamedTensors initial_parameters() {
  const auto make = [](std::vector<int64_t> shape, double from) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    return torch::linspace(from, 0.6, numel, torch::kDouble).view(shape).set_requires_grad(true);
  };
  return {{"w1", make({6, 9}, -0.5)}, {"b1", make({9}, 0.1)}, {"w2", make({9, 3}, -0.7)}};
}

torch::jit::Module script_net() {
  torch::jit::Module net("Net");
  for (auto& [name, tensor] : initial_parameters())
    net.register_parameter(name, tensor, /*is_buffer=*/false);
  net.define(R"(
def forward(self, x):
    return torch.tanh(x.matmul(self.w1) + self.b1).matmul(self.w2)
)");
  return net;
}

at::Tensor computed(const NamedTensors& p, const at::Tensor& x) {
  return torch::tanh(x.matmul(p[0].second) + p[1].second).matmul(p[2].second);
}

at::Tensor samples(int step) {
  return torch::arange(12 * 6, torch::kDouble).add(step * 5).remainder(11).div(7).view({12, 6});
}

void train(torch::optim::Optimizer& optimizer, int part, int parts,
           const std::function<at::Tensor(const at::Tensor&)>& forward) {
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    forward(samples(step).chunk(parts)[part]).pow(2).mean().backward();
    optimizer.step();
  }
}

NamedTensors trained_alone() {
  NamedTensors p = initial_parameters();
  std::vector<at::Tensor> values;
  for (const auto& entry : p) values.push_back(entry.second);
  optim::FusedAdamW optimizer(values, torch::optim::AdamWOptions(1e-2));
  train(optimizer, 0, 1, [&](const at::Tensor& x) { return computed(p, x); });
  return p;
}

void expect_close(const NamedTensors& got, const NamedTensors& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LT((got[i].second - expected[i].second).abs().max().item<double>(), 1e-10)
        << what << ", " << got[i].first;
  }
}

TEST(ZeroOptimizer, OfAScriptAndOfAListEqualsOneProcess) {
  for (const int stage : {1, 2, 3}) {
    for (const bool script : {true, false}) {
      const std::string what = (script ? "script, stage " : "list, stage ") + std::to_string(stage);
      testing::run_threads(3, [&](Communicator& comm) {
        torch::jit::Module net = script_net();
        NamedTensors list = initial_parameters();
        const NamedTensors parameters = script ? parameters_of(net) : list;
        if (comm.rank() != 0) {  // rank 0's values count
          const torch::NoGradGuard no_grad;
          for (const auto& entry : parameters) at::Tensor(entry.second).zero_();
        }
        ZeroOptimizer optimizer(comm, parameters, torch::optim::AdamWOptions(1e-2),
                                {.stage = stage, .bucket_sizes = {.first = 200, .rest = 300}});
        train(optimizer, comm.rank(), comm.size(), [&](const at::Tensor& x) {
          return script ? net.forward({x}).toTensor() : computed(list, x);
        });
        expect_close(parameters, trained_alone(), what);
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::inline v0::zero_models_test
