// The operators of a layer, as a rank of a divided model executes them: what the roofline of each needs. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan {

// A product of matrices: rows x inner by inner x columns, `count` of them.
struct MatrixProduct {
  double rows = 0, columns = 0, inner = 0;
  double count = 1;
  bool expert = false;  // of the experts: grouped, and their weights differ
  // Twice the multiplications, of all of them.
  double flops() const { return 2 * rows * columns * inner * count; }
};

// A layer's forward on one rank.
struct LayerOperators {
  std::vector<MatrixProduct> products;  // those with weights
  double score_flops = 0;               // of attention's two products, a causal mask's half taken
  double scores = 0;                    // of all heads here, before the mask
  // Elements read and written, in rows x width, by what is neither: norms, rotations, activations, sums.
  double whole_rows =
      0;  // elements of `hidden` that each rank of tensor has whole, unless rows are divided
  double divided = 0;  // elements that tensor divides
};
// How a layer's work is divided: the rows that this rank computes, and among how many ranks.
struct LayerDivision {
  double rows = 1;          // tokens of a micro-batch on this rank (context has divided them)
  double sequence = 1;      // tokens that a token attends to, of all ranks of context
  int tensor = 1;           // ranks among which heads and inner columns are divided
  int expert_tensor = 1;    // ranks among which an expert's inner columns are divided
  double experts_here = 0;  // experts of this rank
  double expert_rows = 0;   // rows that this rank's experts compute together
};
LOCKSTEP_API LayerOperators layer_operators(const ModelShape& model, int64_t layer,
                                            const LayerDivision& division);

}  // namespace lockstep::inline v0::plan
