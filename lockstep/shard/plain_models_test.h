// Transformers as somebody writes them who has libtorch alone: no type of Lockstep's is in them.
#pragma once

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

namespace lockstep::plain {

constexpr int64_t kWidth = 32, kHeads = 4, kLayers = 2, kWords = 37;

// Rows [B, T, kWidth]. `splits`: how heads are told apart; a number that is written here would be that of the whole layer.
struct AttentionImpl : torch::nn::Module {
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
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool is_causal, int64_t splits = -1)
      : is_causal(is_causal),
        attention(register_module("attention", Attention(is_causal, splits))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))),
        norm1(register_module("norm1", norm())),
        norm2(register_module("norm2", norm())) {}

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

struct GptImpl : torch::nn::Module {
  explicit GptImpl(bool is_tied = false, int64_t splits = -1)
      : words(register_module("words", torch::nn::Embedding(kWords, kWidth))),
        positions(register_module("positions", torch::nn::Embedding(16, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", BlockImpl::norm())),
        head(register_module(
            "head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWords).bias(false)))) {
    for (int64_t i = 0; i < kLayers; ++i) blocks->push_back(Block(true, splits));
    if (is_tied) head->weight = words->weight;
  }
  // Ids [B, T] -> logits [B, T, kWords].
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = words(ids) + positions(torch::arange(ids.size(1)));
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head(norm(x));
  }
  torch::nn::Embedding words, positions;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Gpt);

// Ids [B, T] -> [B, kWords], by the first token.
struct EncoderImpl : torch::nn::Module {
  EncoderImpl()
      : words(register_module(
            "words", torch::nn::Embedding(
                         torch::nn::EmbeddingOptions(kWords, kWidth).padding_idx(kWords - 1)))),
        positions(register_module("positions", torch::nn::Embedding(16, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kWidth, kWords))) {
    for (int64_t i = 0; i < kLayers; ++i) blocks->push_back(Block(false));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = words(ids) + positions(torch::arange(ids.size(1)));
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head(x.select(1, 0));
  }
  torch::nn::Embedding words, positions;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(Encoder);

// Pictures [B, 3, 8, 8] -> [B, kWords], by patches of 4 x 4.
struct VisionImpl : torch::nn::Module {
  VisionImpl()
      : patches(register_module(
            "patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, kWidth, 4).stride(4)))),
        positions(register_parameter("positions", torch::randn({4, kWidth}))),
        norm(register_module("norm", BlockImpl::norm())),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kWidth, kWords))) {
    for (int64_t i = 0; i < kLayers; ++i) blocks->push_back(Block(false));
  }
  at::Tensor forward(const at::Tensor& pictures) {
    at::Tensor x = norm(patches(pictures).flatten(2).transpose(1, 2) + positions);
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head(x.mean(1));
  }
  torch::nn::Conv2d patches;
  at::Tensor positions;
  torch::nn::LayerNorm norm;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(Vision);

}  // namespace lockstep::plain
