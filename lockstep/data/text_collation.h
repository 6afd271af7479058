// Tokenised texts become a batch: padded to a length, to the longest, or packed end to end.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/data/text_batch.h"

namespace lockstep::data {

// How sequences become a batch.
struct CollateOptions {
  TextPadding padding = TextPadding::kLongest;
  int64_t max_length = 128;     // tokens of a sequence, special ones included
  int64_t pad_to_multiple = 1;  // kLongest: T is a multiple of this, or max_length; kPacked: 1
};

// Throws InvalidArgument for options out of range.
void check(const CollateOptions& options);

// A sequence of token ids that lie somewhere else.
struct TokenizedText {
  std::span<const int32_t> ids;
  int64_t second = 0;  // where its second text begins; ids.size() if there is none
  int64_t label = -1;
};

// The texts in their order. Throws InvalidArgument (check(options)), for no texts, and, where
// batches have the width max_length, for a longer one.
TextBatch collate_texts(std::span<const TokenizedText> texts, int64_t pad_id,
                        const CollateOptions& options);

}  // namespace lockstep::data
