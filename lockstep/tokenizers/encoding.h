// A tokenised text, and options for cutting and padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::tokenizers {

// The three vectors are equally long.
struct Encoding {
  std::vector<int32_t> ids = {};
  std::vector<int32_t> type_ids = {};        // 0: first text and its special tokens, 1: second
  std::vector<int32_t> attention_mask = {};  // 1; 0 where padded

  bool operator==(const Encoding&) const = default;
};

// Which text is cut where a sequence is too long.
enum class Truncation {
  kNone,
  kLongestFirst,  // the longer text first, then both evenly
  kOnlyFirst,
  kOnlySecond,
};

// To which length sequences are padded.
enum class Padding {
  kNone,
  kLongest,    // to the longest of the batch
  kMaxLength,  // to EncodeOptions::max_length
};

// How a text, or a pair, becomes a sequence.
struct EncodeOptions {
  int64_t max_length = 512;  // tokens, special ones included; used where cut or padded
  Truncation truncation = Truncation::kLongestFirst;  // of sequences longer than max_length
  bool special_tokens = true;                         // [CLS] text [SEP] pair [SEP]
};

// How sequences become a batch.
struct BatchOptions {
  Padding padding = Padding::kNone;  // to a common length
  int64_t pad_to_multiple = 1;       // lengths are padded further, to a multiple of this
  int threads = 0;                   // 0: as many as there are processors for this process
};

// The tokens of each text that remain where `first` and `second` (0 where there is no pair) must
// share `room` tokens, cut like Hugging Face's tokenizers.
// Throws: InvalidArgument if the strategy cannot do it: only the first (second) may be cut and it
// is not longer than the excess.
LOCKSTEP_API std::pair<size_t, size_t> truncated_lengths(size_t first, size_t second, size_t room,
                                                         Truncation truncation);

// Pads on the right with `pad_id`, type 0. `max_length` is for kMaxLength. Longer ones are
// unchanged.
LOCKSTEP_API void pad(std::span<Encoding> encodings, Padding padding, int64_t max_length,
                      int64_t pad_to_multiple, int32_t pad_id);

}  // namespace lockstep::inline v0::tokenizers
