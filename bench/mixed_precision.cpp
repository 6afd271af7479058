// Forward and backward of BERT-base's encoder (12 layers, 768 wide, 8 x 128 tokens) in float32 and
// under Autocast in bfloat16, in alternating rounds: milliseconds (the median) and the ratio. On
// one thread, pinned to a core:
//   taskset -c 1 build/release/bin/bench/mixed_precision [ROUNDS]
#include <ATen/Parallel.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <vector>

#include "lockstep/amp/autocast.h"

namespace {

using torch::nn::LayerNorm;
using torch::nn::Linear;

constexpr int64_t kWidth = 768, kHeads = 12, kInner = 3072, kLayers = 12, kTokens = 128, kRows = 8;

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(bool fused_attention) : fused(fused_attention) {
    qkv = register_module("qkv", Linear(kWidth, 3 * kWidth));
    out = register_module("out", Linear(kWidth, kWidth));
    up = register_module("up", Linear(kWidth, kInner));
    down = register_module("down", Linear(kInner, kWidth));
    norm1 = register_module("norm1", LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    norm2 = register_module("norm2", LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts =
        qkv(x).view({kRows, kTokens, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const at::Tensor q = parts[0], k = parts[1], v = parts[2];
    at::Tensor mixed;
    if (fused) {
      mixed = at::scaled_dot_product_attention(q, k, v);
    } else {
      const double scale = 1 / std::sqrt(static_cast<double>(kWidth / kHeads));
      mixed = at::softmax(q.matmul(k.transpose(-1, -2)) * scale, -1).matmul(v);
    }
    const auto y = norm1(x + out(mixed.transpose(1, 2).reshape({kRows, kTokens, kWidth})));
    return norm2(y + down(torch::nn::functional::gelu(up(y))));
  }
  bool fused;
  Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  LayerNorm norm1{nullptr}, norm2{nullptr};
};
TORCH_MODULE(Layer);

struct Contender {
  const char* name;
  bool bfloat16;
  torch::nn::ModuleList layers;
  std::vector<double> ms;
};

torch::nn::ModuleList make_layers(bool fused_attention) {
  torch::nn::ModuleList layers;
  for (int64_t i = 0; i < kLayers; ++i) layers->push_back(Layer(fused_attention));
  return layers;
}

double step(Contender& contender, const at::Tensor& input) {
  for (auto& parameter : contender.layers->parameters()) parameter.mutable_grad().reset();
  const auto start = std::chrono::steady_clock::now();
  at::Tensor x = input;
  {
    std::optional<lockstep::amp::Autocast> autocast;
    if (contender.bfloat16) autocast.emplace(at::kCPU, at::kBFloat16);
    for (const auto& layer : *contender.layers) x = layer->as<LayerImpl>()->forward(x);
  }
  x.to(at::kFloat).pow(2).mean().backward();
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  return spent.count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  std::vector<Contender> contenders{
      {"float32, attention by products", false, make_layers(false), {}},
      {"float32, fused attention", false, make_layers(true), {}},
      {"bfloat16, attention by products", true, make_layers(false), {}},
      {"bfloat16, fused attention", true, make_layers(true), {}}};
  const at::Tensor input = torch::randn({kRows, kTokens, kWidth});
  for (int round = -1; round < rounds; ++round) {
    for (Contender& contender : contenders) {
      const double ms = step(contender, input);
      if (round >= 0) contender.ms.push_back(ms);  // the first one warms up
    }
  }
  std::printf("%-34s %10s %10s %12s\n", "", "ms", "times", "least-most");
  for (const Contender& contender : contenders) {
    std::vector<double> ratios;
    for (size_t i = 0; i < contender.ms.size(); ++i)
      ratios.push_back(contenders[0].ms[i] / contender.ms[i]);
    const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
    std::printf("%-34s %10.1f %10.2f %6.2f-%.2f\n", contender.name, median(contender.ms),
                median(ratios), *low, *high);
  }
  return 0;
}
