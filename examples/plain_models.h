// Three transformers as they are written with libtorch alone: nothing of Lockstep's is in this file.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

namespace plain {

constexpr int64_t kWidth = 32, kHeads = 4, kLayers = 4, kTokens = 16, kWords = 40;

inline torch::nn::LayerNorm norm() {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
}

// Rows [batch, tokens, width]. How many heads there are here, the columns say.
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(bool is_causal) : is_causal(is_causal) {
    register_module("query", query);
    register_module("key", key);
    register_module("value", value);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [](const at::Tensor& y) {
      return y.view({y.size(0), y.size(1), -1, kWidth / kHeads}).transpose(1, 2);
    };
    const at::Tensor mixed = at::scaled_dot_product_attention(heads(query(x)), heads(key(x)),
                                                              heads(value(x)), {}, 0.0, is_causal);
    return out(mixed.transpose(1, 2).flatten(2));
  }
  bool is_causal;
  torch::nn::Linear query{kWidth, kWidth}, key{kWidth, kWidth}, value{kWidth, kWidth},
      out{kWidth, kWidth};
};
TORCH_MODULE(Attention);

// Norms first, as GPT-2's layers.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool is_causal) : attention(is_causal) {
    register_module("norm1", norm1);
    register_module("attention", attention);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + attention(norm1(x));
    return y + down(torch::gelu(up(norm2(y))));
  }
  torch::nn::LayerNorm norm1 = norm(), norm2 = norm();
  Attention attention;
  torch::nn::Linear up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
};
TORCH_MODULE(Block);

// Ids [batch, tokens], with learned positions.
struct WordsImpl : torch::nn::Module {
  WordsImpl() {
    register_module("words", words);
    register_module("positions", positions);
  }
  at::Tensor forward(const at::Tensor& ids) {
    return words(ids) + positions(torch::arange(ids.size(1), ids.device()));
  }
  torch::nn::Embedding words{kWords, kWidth}, positions{kTokens, kWidth};
};
TORCH_MODULE(Words);

// Pictures [batch, 3, 16, 16], in 16 patches.
struct PatchesImpl : torch::nn::Module {
  PatchesImpl() {
    register_module("patches", patches);
    register_parameter("positions", positions);
    register_module("first_norm", first_norm);
  }
  at::Tensor forward(const at::Tensor& pictures) {
    return first_norm(patches(pictures).flatten(2).transpose(1, 2) + positions);
  }
  torch::nn::Conv2d patches{torch::nn::Conv2dOptions(3, kWidth, 4).stride(4)};
  at::Tensor positions = torch::randn({16, kWidth}) * 0.02;
  torch::nn::LayerNorm first_norm = norm();
};
TORCH_MODULE(Patches);

// Logits of every row, or, pooled, of the mean of a sequence's.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(bool is_pooled) : is_pooled(is_pooled) {
    register_module("last_norm", last_norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = last_norm(x);
    return head(is_pooled ? y.mean(1) : y);
  }
  bool is_pooled;
  torch::nn::LayerNorm last_norm = norm();
  torch::nn::Linear head{kWidth, kWords};
};
TORCH_MODULE(Head);

struct TransformerImpl : torch::nn::Module {
  // A GPT-2-like decoder, an encoder of texts, or of pictures (ViT).
  enum class Kind { kDecoder, kEncoder, kVision };

  explicit TransformerImpl(Kind kind) {
    if (kind == Kind::kVision)
      layers->push_back(Patches());
    else
      layers->push_back(Words());
    for (int64_t i = 0; i < kLayers; ++i) layers->push_back(Block(kind == Kind::kDecoder));
    layers->push_back(Head(kind != Kind::kDecoder));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& inputs) { return layers->forward(inputs); }

  torch::nn::Sequential layers;
};
TORCH_MODULE(Transformer);

}  // namespace plain
