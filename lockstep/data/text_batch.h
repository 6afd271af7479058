// A batch of tokenised texts for language models.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// The tensors belong only to the batch. They are on the CPU, or on a loader's device, except the
// lengths.
struct LOCKSTEP_API TextBatch {
  at::Tensor input_ids;       // int64 [B, T]; packed: [N], all sequences end to end
  at::Tensor attention_mask;  // int64 [B, T], 1 for tokens; undefined when packed
  at::Tensor token_type_ids;  // int64, shaped as input_ids
  at::Tensor lengths;         // int64 [B], the tokens of each sequence
  at::Tensor labels;          // int64 [B]; -1 where unknown
  // The tensors that a loader copies to a device; lengths are read on the host.
  auto tensors() { return std::tie(input_ids, attention_mask, token_type_ids, labels); }
};

// How sequences of unequal lengths become a batch.
enum class TextPadding {
  kMaxLength,  // every sequence to CollateOptions::max_length
  kLongest,    // to the longest of the batch
  kPacked,     // no padding: sequences end to end
};

}  // namespace lockstep::inline v0::data
