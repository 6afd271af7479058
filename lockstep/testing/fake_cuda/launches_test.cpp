// What the models give to a device: no more than the same networks do that are written out with libtorch's functions as
// its own modules call them, and the same whatever the batch.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/model/bert.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::inline v0::testing {
namespace {

class LaunchesOnFakeCuda : public WithoutRaces {};

constexpr int64_t kTokens = 8, kWidth = 32, kInner = 44, kHeads = 4, kWords = 50, kLayers = 2;

struct Launches {
  int64_t forward = 0, backward = 0;
  friend bool operator==(const Launches&, const Launches&) = default;
};

// Of the second pass: the first makes what lasts.
Launches launches_of(const std::function<at::Tensor()>& loss) {
  loss().backward();
  Launches result;
  Counting counted;
  const at::Tensor value = loss();
  result.forward = counted.operations();
  value.backward();
  result.backward = counted.operations() - result.forward;
  EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
  return result;
}

void expect_bounded(const Launches& ours, const Launches& plain) {
  EXPECT_LE(static_cast<double>(ours.forward), 1.1 * static_cast<double>(plain.forward));
  EXPECT_LE(static_cast<double>(ours.backward), 1.1 * static_cast<double>(plain.backward));
}

at::Tensor parameter(at::IntArrayRef sizes) {
  return torch::full(sizes, 0.01, torch::kCUDA).requires_grad_();
}

at::Tensor ids_of(int64_t batch) {
  return torch::arange(batch * kTokens)
      .mul(7)
      .remainder(kWords)
      .view({batch, kTokens})
      .to(torch::kCUDA);
}

// [batch, tokens, width] -> [batch, heads, tokens, width of a head], and back.
at::Tensor as_heads(const at::Tensor& x) {
  return x.view({x.size(0), x.size(1), kHeads, -1}).transpose(1, 2);
}
at::Tensor as_rows(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), kWidth});
}

// A decoder as transformers' LlamaForCausalLM is.
at::Tensor plain_decoder_loss(const at::Tensor& ids, const at::Tensor& targets) {
  const auto linear = [](const at::Tensor& x, int64_t in, int64_t out) {
    return at::linear(x, parameter({out, in}));
  };
  const auto norm = [](const at::Tensor& x) {
    return at::rms_norm(x, {kWidth}, parameter({kWidth}), 1e-5);
  };
  const at::Tensor positions = torch::arange(kTokens, torch::kCUDA);
  const at::Tensor angles =
      at::outer(positions.to(torch::kFloat), torch::ones({kWidth / kHeads / 2}, torch::kCUDA));
  const at::Tensor both = at::cat({angles, angles}, 1);
  const at::Tensor cosines = both.cos(), sines = both.sin();
  const auto turned = [&](const at::Tensor& x) {
    const int64_t half = x.size(3) / 2;
    const at::Tensor swapped = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
    return x * cosines + swapped * sines;
  };
  at::Tensor x = at::embedding(parameter({kWords, kWidth}), ids);
  for (int64_t i = 0; i < kLayers; ++i) {
    const at::Tensor in = norm(x);
    const at::Tensor q = turned(as_heads(linear(in, kWidth, kWidth))),
                     k = turned(as_heads(linear(in, kWidth, kWidth))),
                     v = as_heads(linear(in, kWidth, kWidth));
    const at::Tensor mixed = at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
    x = x + linear(as_rows(mixed), kWidth, kWidth);
    const at::Tensor second = norm(x);
    x = x + linear(at::silu(linear(second, kWidth, kInner)) * linear(second, kWidth, kInner),
                   kInner, kWidth);
  }
  const at::Tensor logits = linear(norm(x), kWidth, kWords);
  return at::cross_entropy_loss(logits.view({-1, kWords}), targets.reshape({-1}));
}

TEST_F(LaunchesOnFakeCuda, TransformerLm) {
  LmConfig config;
  config.vocab_size = kWords;
  config.hidden_size = kWidth;
  config.intermediate_size = kInner;
  config.num_hidden_layers = kLayers;
  config.num_attention_heads = kHeads;
  config.max_position_embeddings = 64;
  TransformerLm model(config);
  model->to(torch::kCUDA);
  const auto ours = [&](int64_t batch) {
    const at::Tensor ids = ids_of(batch), targets = ids.clone();
    return launches_of([&] {
      model->zero_grad();
      return model->loss(ids, targets);
    });
  };
  const Launches four = ours(4);
  EXPECT_EQ(four, ours(16));
  // What makes its parameters counts for the plain one: it is asked for them each time. They are taken off.
  int64_t made = 0;
  {
    const Counting counted;
    parameter({kWidth, kWidth});
    made = counted.operations();
  }
  const at::Tensor ids = ids_of(4);
  Launches plain = launches_of([&] { return plain_decoder_loss(ids, ids); });
  plain.forward -= made * (2 + kLayers * 9 + 1);
  std::cout << "TransformerLm: " << four.forward << " and " << four.backward << ", plain "
            << plain.forward << " and " << plain.backward << '\n';
  expect_bounded(four, plain);
}

// An encoder as transformers' BertForSequenceClassification is.
at::Tensor plain_encoder_loss(const at::Tensor& ids, const at::Tensor& labels) {
  const auto linear = [](const at::Tensor& x, int64_t in, int64_t out) {
    return at::linear(x, parameter({out, in}), parameter({out}));
  };
  const auto norm = [](const at::Tensor& x) {
    return at::layer_norm(x, {kWidth}, parameter({kWidth}), parameter({kWidth}), 1e-12);
  };
  const at::Tensor positions = torch::arange(kTokens, torch::kCUDA).unsqueeze(0);
  at::Tensor x = at::embedding(parameter({kWords, kWidth}), ids) +
                 at::embedding(parameter({2, kWidth}), at::zeros_like(ids)) +
                 at::embedding(parameter({16, kWidth}), positions);
  x = norm(x);
  for (int64_t i = 0; i < kLayers; ++i) {
    const at::Tensor mixed = at::scaled_dot_product_attention(as_heads(linear(x, kWidth, kWidth)),
                                                              as_heads(linear(x, kWidth, kWidth)),
                                                              as_heads(linear(x, kWidth, kWidth)));
    x = norm(linear(as_rows(mixed), kWidth, kWidth) + x);
    x = norm(linear(at::gelu(linear(x, kWidth, kInner)), kInner, kWidth) + x);
  }
  const at::Tensor pooled = linear(x.select(1, 0), kWidth, kWidth).tanh();
  return at::cross_entropy_loss(linear(pooled, kWidth, 2), labels);
}

TEST_F(LaunchesOnFakeCuda, BertClassifier) {
  BertConfig config;
  config.vocab_size = kWords;
  config.hidden_size = kWidth;
  config.num_hidden_layers = kLayers;
  config.num_attention_heads = kHeads;
  config.intermediate_size = kInner;
  config.max_position_embeddings = 16;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
  BertClassifier model(config);
  model->to(torch::kCUDA);
  const auto ours = [&](int64_t batch) {
    const at::Tensor ids = ids_of(batch),
                     labels = torch::arange(batch).remainder(2).to(torch::kCUDA);
    return launches_of([&] {
      model->zero_grad();
      return torch::nn::functional::cross_entropy(model->forward(ids), labels);
    });
  };
  const Launches four = ours(4);
  EXPECT_EQ(four, ours(16));
  int64_t made = 0;
  {
    const Counting counted;
    parameter({kWidth});
    made = counted.operations();
  }
  const at::Tensor ids = ids_of(4), labels = torch::arange(4).remainder(2).to(torch::kCUDA);
  Launches plain = launches_of([&] { return plain_encoder_loss(ids, labels); });
  plain.forward -= made * (3 + 2 + kLayers * 16 + 4);
  std::cout << "BertClassifier: " << four.forward << " and " << four.backward << ", plain "
            << plain.forward << " and " << plain.backward << '\n';
  expect_bounded(four, plain);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
