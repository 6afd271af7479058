// Attention over sequences that lie end to end in one tensor, padded or not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/kernels/kernels.h"

namespace lockstep::inline v0 {

// One sequence: which rows ask, and which rows they may look at.
struct AttentionSpan {
  int64_t query_begin = 0;  // rows of the queries' tensor
  int64_t queries = 0;
  int64_t key_begin = 0;  // rows of the keys' and the values' tensors
  int64_t keys = 0;
};

struct AttentionLayout {
  // In order of query_begin, without holes: together they are all rows of the queries' tensor.
  std::vector<AttentionSpan> spans;
  // Undefined, or float32 [spans, most keys]: added to the scores of the span's keys.
  at::Tensor bias;
};

struct AttentionOptions {
  int64_t heads = 1;
  double dropout = 0;  // of the weights; 0 also in evaluation
  // Dropout's mask on the CPU: row h * Q + q of it is that of query q and head h, counted from
  // `first_head`. A mask that drops nothing stands for one drawn from the default generator.
  kernels::Dropout mask = {};
  int64_t first_head = 0;
};

// softmax(q k^T / sqrt(width of a head)) v in each span and each head: queries [Q, heads * width],
// keys and values [K, heads * width], all of one floating dtype -> [Q, heads * width].
// Differentiable in all three, once. Computed by scaled_dot_product_attention, with one call for
// each run of spans that are alike, end to end; with dropout on the CPU by products and a softmax
// for each span. Dropout without a mask, and on other devices than the CPU, draws from the device's
// default generator. Keys outside of a span are not computed.
at::Tensor attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                     const AttentionLayout& layout, const AttentionOptions& options);

}  // namespace lockstep::inline v0
