// Makes a batch of tokenised texts: padded to a length or to the longest, or packed end to end.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/core/export.h"
#include "lockstep/data/text_batch.h"

namespace lockstep::inline v0::data {

// How sequences are combined into a batch.
struct CollateOptions {
  TextPadding padding = TextPadding::kLongest;  // the form of a batch
  int64_t max_length = 128;                     // tokens per sequence, including special ones
  int64_t pad_to_multiple = 1;  // kLongest: T is a multiple of this, or max_length; kPacked: 1
};

// Throws InvalidArgument for options out of range.
LOCKSTEP_API void check(const CollateOptions& options);

// A sequence of token ids in other memory.
struct TokenizedText {
  std::span<const int32_t> ids;
  int64_t second = 0;  // start of its second text; ids.size() if there is none
  int64_t label = -1;
};

// The texts keep their order.
// Throws: InvalidArgument for options out of range (check(options)), for no texts, and, where
// batches have the width max_length, for a longer text.
LOCKSTEP_API TextBatch collate_texts(std::span<const TokenizedText> texts, int64_t pad_id,
                                     const CollateOptions& options);

}  // namespace lockstep::inline v0::data
