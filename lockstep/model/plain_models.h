// Transformers as they are written with libtorch alone: no type of Lockstep's is in them. What divides a model from outside
// is tried on them, by tests and by the equality matrix.
#pragma once

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <optional>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::plain {

// The size of these models.
constexpr int64_t kWidth = 32, kHeads = 4, kLayers = 2, kWords = 37;

// Rows [B, T, kWidth]. `splits`: how heads are told apart; a number that is written here would be that of the whole layer.
struct LOCKSTEP_API AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(bool is_causal, int64_t splits = -1)
      : is_causal(is_causal),
        splits(splits),
        query(register_module("query", torch::nn::Linear(kWidth, kWidth))),
        key(register_module("key", torch::nn::Linear(kWidth, kWidth))),
        value(register_module("value", torch::nn::Linear(kWidth, kWidth))),
        mix(register_module("mix", torch::nn::Linear(kWidth, kWidth))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [this](const at::Tensor& columns) {
      return columns.view({columns.size(0), columns.size(1), splits, kWidth / kHeads})
          .transpose(1, 2);
    };
    const at::Tensor mixed = at::scaled_dot_product_attention(heads(query(x)), heads(key(x)),
                                                              heads(value(x)), {}, 0.0, is_causal);
    return mix(mixed.transpose(1, 2).flatten(2));
  }

  bool is_causal;
  int64_t splits;
  torch::nn::Linear query, key, value, mix;
};
TORCH_MODULE(Attention);

// GPT-2's layer: norms first. Of an encoder: norms last.
struct LOCKSTEP_API BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool is_causal, int64_t splits = -1)
      : is_causal(is_causal),
        attention(register_module("attention", Attention(is_causal, splits))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))),
        norm1(register_module("norm1", norm())),
        norm2(register_module("norm2", norm())) {}

  // Over the width.
  static torch::nn::LayerNorm norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
  }

  at::Tensor forward(const at::Tensor& x) {
    if (is_causal) {
      const at::Tensor y = x + attention(norm1(x));
      return y + down(torch::gelu(up(norm2(y))));
    }
    const at::Tensor y = norm1(x + attention(x));
    return norm2(y + down(torch::gelu(up(y))));
  }

  bool is_causal;
  Attention attention;
  torch::nn::Linear up, down;
  torch::nn::LayerNorm norm1, norm2;
};
TORCH_MODULE(Block);

// Ids [B, T] -> rows [B, T, kWidth].
struct LOCKSTEP_API EmbedImpl : torch::nn::Module {
  explicit EmbedImpl(bool has_padding = false)
      : words(register_module(
            "words",
            torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, kWidth)
                                     .padding_idx(has_padding ? std::optional<int64_t>(kWords - 1)
                                                              : std::nullopt)))),
        positions(register_module("positions", torch::nn::Embedding(16, kWidth))) {}
  at::Tensor forward(const at::Tensor& ids) {
    return words(ids) + positions(torch::arange(ids.size(1)));
  }
  torch::nn::Embedding words, positions;
};
TORCH_MODULE(Embed);

// The last norm and the words' logits.
struct LOCKSTEP_API HeadImpl : torch::nn::Module {
  HeadImpl()
      : norm(register_module("norm", BlockImpl::norm())),
        head(register_module(
            "head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWords).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) { return head(norm(x)); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Head);

// Ids [B, T] -> logits [B, T, kWords].
struct LOCKSTEP_API GptImpl : torch::nn::Module {
  explicit GptImpl(bool is_tied = false, int64_t splits = -1, int64_t blocks = kLayers) {
    Embed embed;
    Head head;
    if (is_tied) head->head->weight = embed->words->weight;
    layers->push_back(embed);
    for (int64_t i = 0; i < blocks; ++i) layers->push_back(Block(true, splits));
    layers->push_back(head);
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& ids) { return layers->forward(ids); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Gpt);

// By the first token of each sequence.
struct LOCKSTEP_API FirstImpl : torch::nn::Module {
  FirstImpl() : head(register_module("head", torch::nn::Linear(kWidth, kWords))) {}
  at::Tensor forward(const at::Tensor& x) { return head(x.select(1, 0)); }
  torch::nn::Linear head;
};
TORCH_MODULE(First);

// Ids [B, T] -> [B, kWords].
struct LOCKSTEP_API EncoderImpl : torch::nn::Module {
  explicit EncoderImpl(int64_t blocks = kLayers) {
    layers->push_back(Embed(/*has_padding=*/true));
    for (int64_t i = 0; i < blocks; ++i) layers->push_back(Block(false));
    layers->push_back(First());
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& ids) { return layers->forward(ids); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Encoder);

// Pictures [B, 3, H, W] -> rows [B, count, kWidth], by `count` patches of 4 x 4.
struct LOCKSTEP_API PatchesImpl : torch::nn::Module {
  explicit PatchesImpl(int64_t count = 4)
      : patches(register_module(
            "patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, kWidth, 4).stride(4)))),
        positions(register_parameter("positions", torch::randn({count, kWidth}))),
        norm(register_module("norm", BlockImpl::norm())) {}
  at::Tensor forward(const at::Tensor& pictures) {
    return norm(patches(pictures).flatten(2).transpose(1, 2) + positions);
  }
  torch::nn::Conv2d patches;
  at::Tensor positions;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Patches);

// The mean over the rows, and the classes' logits.
struct LOCKSTEP_API MeanImpl : torch::nn::Module {
  MeanImpl() : head(register_module("head", torch::nn::Linear(kWidth, kWords))) {}
  at::Tensor forward(const at::Tensor& x) { return head(x.mean(1)); }
  torch::nn::Linear head;
};
TORCH_MODULE(Mean);

// Pictures [B, 3, H, W] of so many patches -> [B, kWords].
struct LOCKSTEP_API VisionImpl : torch::nn::Module {
  explicit VisionImpl(int64_t blocks = kLayers, int64_t patches = 4) {
    layers->push_back(Patches(patches));
    for (int64_t i = 0; i < blocks; ++i) layers->push_back(Block(false));
    layers->push_back(Mean());
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& pictures) { return layers->forward(pictures); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Vision);

}  // namespace lockstep::inline v0::plain
