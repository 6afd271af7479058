// Forward and backward of BertClassifier, dropout included, in float32 and under Autocast in
// bfloat16: 8 texts padded to 128 tokens, and 8 of 8 to 50 tokens packed. In alternating rounds:
// milliseconds (the median) and how many times as fast as the first line. On one thread, pinned to
// a core:
//   taskset -c 1 build/release/bin/bench/mixed_precision [ROUNDS [base|mini]]
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/model/bert.h"

namespace {

using lockstep::BertClassifier;

constexpr int64_t kTexts = 8, kTokens = 128, kVocabulary = 21128, kLabels = 6;

struct Contender {
  const char* name;
  bool bfloat16;
  bool packed;
  std::vector<double> ms;
};

struct Batch {
  at::Tensor ids, lengths;
};

Batch make_batch(bool packed) {
  if (!packed) return {torch::randint(1, kVocabulary, {kTexts, kTokens}, at::kLong), {}};
  const at::Tensor lengths = torch::arange(8, 8 + 6 * kTexts, 6, at::kLong);
  return {torch::randint(1, kVocabulary, {lengths.sum().item<int64_t>()}, at::kLong), lengths};
}

double step(BertClassifier& model, const Contender& contender, const Batch& batch,
            const at::Tensor& labels) {
  model->zero_grad();
  const auto start = std::chrono::steady_clock::now();
  at::Tensor loss;
  {
    std::optional<lockstep::amp::Autocast> autocast;
    if (contender.bfloat16) autocast.emplace(at::kCPU, at::kBFloat16);
    const at::Tensor logits = model->forward(batch.ids, {}, {}, batch.lengths);
    loss = torch::nn::functional::cross_entropy(logits.to(at::kFloat), labels);
  }
  loss.backward();
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  return spent.count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const std::vector<Contender>& contenders) {
  std::printf("%-22s %10s %10s %12s\n", "", "ms", "times", "least-most");
  for (const Contender& contender : contenders) {
    std::vector<double> ratios;
    for (size_t i = 0; i < contender.ms.size(); ++i)
      ratios.push_back(contenders[0].ms[i] / contender.ms[i]);
    const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
    std::printf("%-22s %10.1f %10.2f %6.2f-%.2f\n", contender.name, median(contender.ms),
                median(ratios), *low, *high);
  }
}

void run(int rounds, const char* size) {
  lockstep::BertConfig config = lockstep::bert_preset(size);
  config.vocab_size = kVocabulary;
  config.labels.assign(kLabels, "");
  BertClassifier model(config);
  std::vector<Contender> contenders{{"float32, padded", false, false, {}},
                                    {"bfloat16, padded", true, false, {}},
                                    {"float32, packed", false, true, {}},
                                    {"bfloat16, packed", true, true, {}}};
  const Batch batches[] = {make_batch(false), make_batch(true)};
  const at::Tensor labels = torch::randint(0, kLabels, {kTexts}, at::kLong);
  for (int round = -1; round < rounds; ++round) {
    for (Contender& contender : contenders) {
      const double ms = step(model, contender, batches[contender.packed ? 1 : 0], labels);
      if (round >= 0) contender.ms.push_back(ms);  // the first one warms up
    }
  }
  print(contenders);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    at::set_num_threads(1);
    torch::manual_seed(1);
    run(argc > 1 ? std::atoi(argv[1]) : 5, argc > 2 ? argv[2] : "base");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
