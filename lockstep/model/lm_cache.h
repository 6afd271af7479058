// LmCache: keys and values of the tokens that a TransformerLm has seen, for sampling token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/model/lm_config.h"

namespace lockstep::inline v0 {

// The cache of `sequences` texts that grow together, up to `capacity` tokens each.
struct LOCKSTEP_API LmCache {
  LmCache(const LmConfig& config, int64_t sequences, int64_t capacity,
          const at::TensorOptions& options = at::kFloat);

  int64_t sequences = 0;
  int64_t capacity = 0;
  int64_t length = 0;  // tokens so far
  std::vector<at::Tensor> keys,
      values;  // of each layer: [sequences, key_value_heads, capacity, head_dim]
};

}  // namespace lockstep::inline v0
