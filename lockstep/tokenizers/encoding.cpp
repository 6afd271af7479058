#include "lockstep/tokenizers/encoding.h"

#include <algorithm>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::tokenizers {
namespace {

// The remaining part of `length` after `excess` tokens were removed.
size_t cut(const char* which, size_t length, size_t excess) {
  if (length > excess) return length - excess;
  throw InvalidArgument("truncation: the " + std::string(which) + " text has " +
                        std::to_string(length) + " tokens and " + std::to_string(excess) +
                        " must go; raise max_length or cut the longest first");
}

}  // namespace

std::pair<size_t, size_t> truncated_lengths(size_t first, size_t second, size_t room,
                                            Truncation truncation) {
  if (truncation == Truncation::kNone || first + second <= room) return {first, second};
  if (room == 0) return {0, 0};
  const size_t excess = first + second - room;
  if (truncation == Truncation::kOnlyFirst) return {cut("first", first, excess), second};
  if (truncation == Truncation::kOnlySecond) return {first, cut("second", second, excess)};
  // The shorter text is kept whole if it takes at most half of the room.
  const bool swapped = first > second;
  size_t shorter = std::min(first, second), longer = std::max(first, second);
  longer = shorter > room ? shorter : std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = shorter + room % 2;
  }
  return swapped ? std::pair{longer, shorter} : std::pair{shorter, longer};
}

void pad(std::span<Encoding> encodings, Padding padding, int64_t max_length,
         int64_t pad_to_multiple, int32_t pad_id) {
  if (padding == Padding::kNone) return;
  if (pad_to_multiple < 1) {
    throw InvalidArgument("pad_to_multiple is " + std::to_string(pad_to_multiple) +
                          "; use 1 or more");
  }
  size_t length = 0;
  if (padding == Padding::kMaxLength) {
    if (max_length < 1)
      throw InvalidArgument("max_length is " + std::to_string(max_length) + "; use 1 or more");
    length = static_cast<size_t>(max_length);
  } else {
    for (const Encoding& encoding : encodings) length = std::max(length, encoding.ids.size());
  }
  const auto multiple = static_cast<size_t>(pad_to_multiple);
  length = (length + multiple - 1) / multiple * multiple;
  for (Encoding& encoding : encodings) {
    if (encoding.ids.size() >= length) continue;
    encoding.ids.resize(length, pad_id);
    encoding.type_ids.resize(length, 0);
    encoding.attention_mask.resize(length, 0);
  }
}

}  // namespace lockstep::inline v0::tokenizers
