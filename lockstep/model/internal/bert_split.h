// What a part of BERT computes where layers are divided among ranks (BertSplit): of libtorch's operations and the
// decoder's products, with the masks that the whole model would have drawn.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "lockstep/kernels/kernels.h"
#include "lockstep/model/attention.h"
#include "lockstep/model/bert.h"
#include "lockstep/model/internal/arithmetic.h"
#include "lockstep/model/internal/layer_node.h"

namespace lockstep::internal {

// Throws InvalidArgument for a part of a model that is none: what does not divide, functions that are missing.
void check_split(const BertConfig& config, const BertSplit& split);

// [0, vocab_size] in parts whose sizes differ by one at most: where part `part` begins.
int64_t words_begin(const BertConfig& config, const BertSplit& split, int64_t part);

// A unit's masks, in the order in which one process draws them: by the nodes' seeds, or, composed, element by element.
class PartMasks {
 public:
  // Collective over the parts where any probability is above 0; else nothing is drawn.
  PartMasks(const BertSplit& split, Arithmetic arithmetic,
            const std::array<double, 3>& probabilities);

  // Of rows [rows, width], which are alike on all parts.
  at::Tensor rows(const at::Tensor& x, size_t place) const;
  // Of a span's weights [heads of this part, queries, keys], the first of `all_queries` being `query_begin`.
  at::Tensor weights(const at::Tensor& x, size_t place, int64_t first_head, int64_t all_heads,
                     int64_t query_begin, int64_t all_queries) const;

 private:
  bool composed_;
  std::array<double, 3> probabilities_;
  std::array<kernels::Dropout, 3> dropouts_ = {};
  at::Generator generator_;
};

// A layer of BERT: x [rows, hidden_size], alike on all parts, as is the result. `first`: the rows that it is computed
// for; undefined: all. Differentiable once.
struct DividedLayer {
  const BertConfig* config = nullptr;
  const BertSplit* split = nullptr;
  const AttentionLayout* layout = nullptr;
  at::Tensor first = {};
  Arithmetic arithmetic = Arithmetic::kComposed;
  bool training = false;
};
at::Tensor divided_layer(const at::Tensor& x, const LayerParameters& parameters,
                         const DividedLayer& how);

// The words' rows, added up over the parts, of ids int64 [rows]. Throws InvalidArgument for an id outside the
// vocabulary.
at::Tensor divided_words(const at::Tensor& ids, const at::Tensor& weight, const BertConfig& config,
                         const BertSplit& split);

}  // namespace lockstep::internal
