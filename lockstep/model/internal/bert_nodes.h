// The computation of a BERT layer from rows to rows, as nodes of the graph with backwards written by hand: each
// reads and writes a tensor as few times as possible, and products get their operands in the layout in which
// they are fast. For the CPU, in float32, with products in float32 or bfloat16. Differentiable once.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>

#include "lockstep/kernels/kernels.h"
#include "lockstep/model/attention.h"

namespace lockstep::inline v0::internal {

// Rows between two layers: float32, and the same in the type that products are done in. Both have gradients,
// which the node that made them adds up as it reads them.
struct LayerRows {
  at::Tensor exact;
  at::Tensor typed;
};

// x weight^T + bias; without a weight x is that already, of a Linear that hooks compute.
struct Affine {
  at::Tensor x;
  at::Tensor weight = {}, bias = {};
  int64_t columns() const { return weight.defined() ? weight.size(0) : x.size(1); }
};

// softmax(q k^T / sqrt(width of a head)) v in each span and each head: of queries, keys and values, whose columns
// are alike, -> rows of the queries' number. Those of one x are one product.
struct HeadsPlan {
  std::shared_ptr<const AttentionLayout> layout;
  int64_t heads = 1;
  int64_t first_head = 0;  // of these in the layer, for dropout
  kernels::Dropout dropout;
  bool in_bfloat16 = false;
};
at::Tensor attention_node(const std::array<Affine, 3>& qkv, const HeadsPlan& plan);

at::Tensor activation_node(const Affine& x, kernels::Activation activation, bool in_bfloat16);

// norm(before(x) + residual) * gamma + beta, then `after`; x may be undefined, and is nothing then.
struct NormPlan {
  double epsilon = 0;
  kernels::Dropout before = {}, after = {};
  bool in_bfloat16 = false;
};
LayerRows norm_node(const Affine& x, const at::Tensor& residual, const at::Tensor& gamma,
                    const at::Tensor& beta, const NormPlan& plan);

}  // namespace lockstep::inline v0::internal
