// A layer of BERT's encoder as one node of the graph, with a backward written by hand: every tensor
// is read and written as few times as can be, and products get their operands in the layout that
// they are fast in.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>

#include "lockstep/kernels/kernels.h"
#include "lockstep/model/attention.h"

namespace lockstep::internal {

// A layer's parameters, in the order of transformers' names.
struct LayerParameters {
  at::Tensor query_weight, query_bias, key_weight, key_bias, value_weight, value_bias;
  at::Tensor mix_weight, mix_bias, mix_gamma, mix_beta;
  at::Tensor inner_weight, inner_bias;
  at::Tensor outer_weight, outer_bias, gamma, beta;
};

// What a layer computes, beside its parameters.
struct LayerPlan {
  std::shared_ptr<const AttentionLayout> layout;
  at::Tensor first;  // int64: the rows that the layer is computed for; undefined: all
  int64_t heads = 1;
  double epsilon = 0;
  kernels::Activation activation = kernels::Activation::kGelu;
  bool in_bfloat16 = false;  // products, and what lies between them and a norm
  kernels::Dropout weights_dropout, mix_dropout, outer_dropout;
};

// Rows of numbers between two layers: float32, and rounded where layers compute in bfloat16. Both
// have gradients; whoever reads takes either.
struct LayerRows {
  at::Tensor exact;
  at::Tensor rounded;  // undefined in float32
};

// Differentiable once in x and the parameters, which are contiguous float32 on the CPU.
LayerRows layer(const LayerRows& x, const LayerParameters& parameters,
                const std::shared_ptr<const LayerPlan>& plan);

}  // namespace lockstep::internal
