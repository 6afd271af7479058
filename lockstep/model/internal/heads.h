// Attention's products and softmax, head by head, in memory that stays in the second-level cache.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/kernels/kernels.h"
#include "lockstep/model/attention.h"

namespace lockstep::inline v0::internal {

// Tensors of one type, float32 or bfloat16, on the CPU; rows may have any stride.
struct Heads {
  at::Tensor queries;  // [Q, heads * width]
  at::Tensor keys;     // [K, heads * width]
  at::Tensor values;
  const AttentionLayout* layout = nullptr;
  int64_t heads = 1;
  kernels::Dropout dropout;
  int64_t first_head = 0;  // of these in their layer: dropout's rows are counted from there
};

// Whether heads_forward() can do with `type` on this processor.
bool has_heads(at::ScalarType type);

// softmax(q k^T / sqrt(width)) v, with dropout of the weights, into mixed [Q, heads * width];
// statistics float32 [2, heads, Q] for backward.
void heads_forward(const Heads& heads, const at::Tensor& mixed, const at::Tensor& statistics);

// Written, not added to. The transposes, [heads * width, rows], are there for bfloat16 only.
struct HeadsGradients {
  at::Tensor queries, keys, values;
  at::Tensor queries_columns, keys_columns, values_columns;
};
void heads_backward(const Heads& heads, const at::Tensor& statistics, const at::Tensor& dmixed,
                    const HeadsGradients& gradients);

}  // namespace lockstep::inline v0::internal
