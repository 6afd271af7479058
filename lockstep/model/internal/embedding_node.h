// BERT's embeddings, their sum's norm and dropout as one node of the graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/model/internal/bert_encoder.h"
#include "lockstep/model/internal/layer_node.h"

namespace lockstep::internal {

struct EmbeddingParameters {
  at::Tensor words, positions, types, gamma, beta;
};

struct EmbeddingPlan {
  at::Tensor words, positions, types;  // int64 [rows]: which row of each table
  int64_t padding = -1;                // this word's gradient is 0
  double epsilon = 0;
  bool in_bfloat16 = false;
  kernels::Dropout dropout;
};

// Differentiable once in the parameters, which are float32 on the CPU. Throws InvalidArgument for
// an index outside of its table.
LayerRows embeddings(const EmbeddingParameters& parameters,
                     const std::shared_ptr<const EmbeddingPlan>& plan);

}  // namespace lockstep::internal
