// The forward and the backward pass of a layer, without the graph around them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/model/internal/heads.h"
#include "lockstep/model/internal/layer_node.h"

namespace lockstep::internal {

// What backward needs of forward. "Typed" tensors are of the type that products are done in.
struct LayerSaved {
  at::Tensor typed_x;       // [rows, width]
  at::Tensor asking;        // float32: the rows that are computed
  at::Tensor typed_asking;  // likewise
  at::Tensor qkv, queries;  // [rows, 3 width]; only keys and values where the layer asks for few
  at::Tensor attention_statistics;
  at::Tensor mixed, mix;  // attention's result, and its product with mix_weight
  at::Tensor mix_statistics;
  at::Tensor y, typed_y;     // of the first norm
  at::Tensor slope, active;  // of the activation
  at::Tensor outer, statistics;
  at::Tensor qkv_weight, mix_weight, inner_weight, outer_weight;  // typed
  at::Tensor mix_bias, mix_gamma, mix_beta, outer_bias, gamma, beta;

  std::vector<at::Tensor*> all();
};

// Which weights need their gradients.
struct LayerWanted {
  bool qkv = true, mix = true, inner = true, outer = true;
};

struct LayerGradients {
  LayerRows x;
  LayerParameters parameters;  // what is not wanted may be undefined
};

class LayerPasses {
 public:
  // Both must outlive it.
  LayerPasses(const LayerPlan& plan, LayerSaved& saved) : plan_(plan), s_(saved) {}

  // Fills `saved`; what only backward needs, if `differentiable`.
  LayerRows forward(const LayerRows& x, const LayerParameters& parameters, bool differentiable);
  // dy: the gradients of what forward() returned, contiguous; either may be undefined. Leaves
  // `saved` as it is.
  LayerGradients backward(const LayerRows& dy, const LayerWanted& wanted) const;

 private:
  // A gradient and, in bfloat16, its transpose.
  struct Turned {
    at::Tensor rows, columns;
    Turned columns_from(int64_t begin, int64_t count) const;
  };

  at::ScalarType type() const { return plan_.in_bfloat16 ? at::kBFloat16 : at::kFloat; }
  at::Tensor typed(const std::vector<at::Tensor>& tensors) const;
  void take(const LayerRows& x, const LayerParameters& parameters);
  void project(const LayerParameters& parameters);
  Heads heads() const;
  kernels::Norm norm(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                     const at::Tensor& gamma, const at::Tensor& beta,
                     const kernels::Dropout& dropout) const;
  kernels::Norm mix_norm() const;
  kernels::Norm outer_norm() const;
  void add_product(const at::Tensor& sum, at::Tensor& product, const at::Tensor& dy,
                   const at::Tensor& weight) const;
  LayerRows backward_heads(const at::Tensor& dmixed, const at::Tensor& dasking, bool wanted,
                           LayerParameters& d) const;
  LayerRows all_rows(const Turned& queries, const Turned& others, const at::Tensor& dasking) const;
  Turned turned_like(const at::Tensor& tensor) const;

  const LayerPlan& plan_;
  LayerSaved& s_;
};

}  // namespace lockstep::internal
