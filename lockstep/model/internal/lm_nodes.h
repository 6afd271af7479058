// A decoder's operations as nodes of the graph with backwards written by hand, each in one pass over
// memory; or, for other devices and types, of libtorch's operations. All take rows: [tokens, columns].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/kernels/kernels.h"
#include "lockstep/model/internal/arithmetic.h"

namespace lockstep::inline v0::internal {

// Gradients of weights that are computed later than those of inputs, by callers that have time until then
// (zero-bubble pipelines, Qi et al., arXiv:2401.10241). One thread.
class DeferredGradients {
 public:
  using Compute = std::function<at::Tensor()>;
  void add(const at::Tensor& weight, Compute compute) {
    pending_.push_back({weight, std::move(compute)});
  }
  // A backward of its own that computes what is pending, one after another in the order in which the other
  // came by, and passes each on to its weight: hooks see it arrive as they see any gradient. Then nothing is
  // pending, also after a failure.
  void run();
  bool empty() const { return pending_.empty(); }

 private:
  struct Pending {
    at::Tensor weight;
    Compute compute;
  };
  std::vector<Pending> pending_;
};

// y = z / sqrt(mean(z^2) + epsilon) * gamma, and z = x + residual where there is a residual, which is
// float32 in any arithmetic; y and x are bfloat16 in that one.
struct RmsNormed {
  at::Tensor z;  // x itself where there was no residual
  at::Tensor y;
};
RmsNormed rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& gamma,
                   double epsilon, Arithmetic arithmetic);

struct Product {
  at::Tensor weight;  // [outputs, inputs]
  at::Tensor bias;    // [outputs], or undefined
};
// x weight^T + bias for each: what reads the same rows is one node, whose gradient is added up in place.
std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<Product>& of,
                                 Arithmetic arithmetic,
                                 std::shared_ptr<DeferredGradients> deferred = nullptr);

// silu(gate) * up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, Arithmetic arithmetic);

// The element (row, column) of x is dropped as (row + first_row, column + first_column) is: any cut of a
// matrix drops what the whole does, on any device. `first_column` is a multiple of 32.
at::Tensor drop_rows(const at::Tensor& x, const kernels::Dropout& dropout, int64_t first_row,
                     int64_t first_column = 0);
// Rows that lie side by side in the batch that dropout is drawn for.
struct RowPiece {
  int64_t first = 0;  // of them, in that batch
  int64_t count = 0;
};
// The same of rows that are several pieces, one after another, from the `first` of those on.
at::Tensor drop_rows(const at::Tensor& x, const kernels::Dropout& dropout,
                     const std::vector<RowPiece>& pieces, int64_t first);

// Cosines and sines of the rows of one pass, where and in the type that rotated() needs them, and as it uses them
// there: all layers of the pass turn by these.
class RotaryRows {
 public:
  struct Angles {
    at::Tensor positions, cosines, sines;
  };
  Angles& of(const at::Tensor& positions, const at::TensorOptions& options);

 private:
  std::vector<Angles> known_;
};

// The angles of positions 0 .. count-1, as transformers computes them, in float32, on the CPU.
struct RotaryTable {
  at::Tensor cosines, sines;  // [positions, width of a head / 2]
  at::Tensor frequencies;     // [width of a head / 2]: what they are made of, for other devices
  std::shared_ptr<RotaryRows> rows;  // of a pass
};

// Sequences of rows, each of which looks back at itself only.
struct CausalLayout {
  std::vector<int64_t> lengths;  // of the sequences, end to end
  at::Tensor positions;          // int64 [rows], on the CPU
  int64_t first_row = 0;         // of these in the batch that dropout is drawn for
  // Where only some of the sequences' rows are here: which. `positions` are of these then.
  std::vector<RowPiece> pieces;
};
struct CausalHeads {
  int64_t heads = 1;
  int64_t key_value_heads = 1;  // heads is a multiple
  int64_t width = 2;            // of a head
  // Where only some of a layer's heads are computed: which they are, of how many. For dropout.
  int64_t first = 0;
  int64_t all = 1;
};
// Queries [rows, heads * width], keys and values [rows, key_value_heads * width] -> [rows, heads * width].
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const CausalHeads& heads,
                            const std::shared_ptr<const CausalLayout>& layout,
                            const RotaryTable& rotary, const kernels::Dropout& dropout,
                            Arithmetic arithmetic);

// Rows [rows, heads * width] turned by their positions, as [heads, rows, width]. Of libtorch's
// operations, differentiable.
at::Tensor rotated(const at::Tensor& rows, int64_t heads, const at::Tensor& positions,
                   const RotaryTable& rotary);

// Each head of keys or values, [sequences, heads, tokens, width], for the `group` heads of queries that look
// at it.
at::Tensor repeated(const at::Tensor& x, int64_t group);

}  // namespace lockstep::inline v0::internal
