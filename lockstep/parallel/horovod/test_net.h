// A small model for the tests of this room, in float64.
#pragma once

#include <torch/torch.h>

namespace lockstep::inline v0::horovod_test {

// Three branches that are added up; the caller chooses which of them is computed first, and
// autograd produces gradients in the reverse order.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    const char* names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; ++i) {
      first.push_back(register_module(std::string(names[i]) + "1", torch::nn::Linear(6, 8)));
      second.push_back(register_module(std::string(names[i]) + "2", torch::nn::Linear(8, 4)));
    }
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    double value = 0;
    for (auto& p : parameters()) {
      p.copy_(torch::linspace(-0.5, 0.5, p.numel(), torch::kDouble).view(p.sizes()).add(value));
      value += 0.013;
    }
  }

  torch::Tensor forward(const torch::Tensor& x, const std::vector<int>& order = {0, 1, 2}) {
    std::vector<torch::Tensor> parts(3, torch::zeros({x.size(0), 4}, torch::kDouble));
    for (const int i : order) parts[i] = second[i](torch::tanh(first[i](x) + i));
    return (parts[0] + parts[1] * 2 + parts[2] * 3) / 10;  // in this order, for every `order`
  }

  std::vector<torch::nn::Linear> first, second;
};
TORCH_MODULE(Branches);

inline torch::Tensor batch(int64_t rows, int64_t step = 0) {
  return torch::arange(rows * 6, torch::kDouble).add(step).remainder(11).div(7).view({rows, 6});
}

// The mean loss over a batch.
inline torch::Tensor loss_of(Branches& net, const torch::Tensor& x,
                             const std::vector<int>& order = {0, 1, 2}) {
  return (net(x, order) - 1).pow(2).mean();
}

inline double largest_difference(const Branches& a, const Branches& b) {
  double largest = 0;
  const auto pa = a->parameters(), pb = b->parameters();
  for (size_t i = 0; i < pa.size(); ++i)
    largest = std::max(largest, (pa[i] - pb[i]).abs().max().item<double>());
  return largest;
}

inline bool same_bits(const Branches& a, const Branches& b) {
  const auto pa = a->parameters(), pb = b->parameters();
  for (size_t i = 0; i < pa.size(); ++i) {
    if (!torch::equal(pa[i], pb[i])) return false;
  }
  return true;
}

}  // namespace lockstep::inline v0::horovod_test
