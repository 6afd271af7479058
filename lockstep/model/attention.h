// Attention over sequences that lie end to end in one tensor, padded or not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep {

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
};

// softmax(q k^T / sqrt(width of a head)) v in each span and each head: queries [Q, heads * width],
// keys and values [K, heads * width], all of one floating dtype -> [Q, heads * width].
// Differentiable in all three, once. Dropout draws from the default generator of the tensors' device.
//
// On other devices than the CPU libtorch's scaled_dot_product_attention, one call for each run of
// spans that are alike, end to end: what it launches does not grow with their number. On
// the CPU two kernels: libtorch's fused one for spans of `kFusedFrom` keys and more without dropout or
// bias, otherwise products and a softmax: below that length the fused one is not faster in float32
// and its backward is slower in bfloat16. Either computes keys outside of a span not at all.
inline constexpr int64_t kFusedFrom = 512;
at::Tensor attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                     const AttentionLayout& layout, const AttentionOptions& options);

}  // namespace lockstep
