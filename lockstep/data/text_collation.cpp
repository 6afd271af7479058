#include "lockstep/data/text_collation.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {
namespace {

at::Tensor int64_tensor(std::initializer_list<int64_t> shape) {
  return at::empty(shape, at::TensorOptions(at::kLong));
}

int64_t length_of(const TokenizedText& text) {
  return static_cast<int64_t>(text.ids.size());
}

// The number of columns of a padded batch.
int64_t width(std::span<const TokenizedText> texts, const CollateOptions& options) {
  int64_t longest = 0;
  for (const TokenizedText& text : texts) longest = std::max(longest, length_of(text));
  if (options.padding == TextPadding::kMaxLength) {
    if (longest <= options.max_length) return options.max_length;
    throw InvalidArgument("texts: one has " + std::to_string(longest) + " tokens, max_length is " +
                          std::to_string(options.max_length) + "; cut it, or raise max_length");
  }
  const int64_t multiple = options.pad_to_multiple, excess = longest % multiple;
  if (excess == 0) return longest;
  const int64_t missing = multiple - excess;
  return missing > options.max_length - longest ? std::max(options.max_length, longest)
                                                : longest + missing;
}

}  // namespace

void check(const CollateOptions& options) {
  if (options.max_length < 1) {
    throw InvalidArgument("texts: max_length is " + std::to_string(options.max_length) +
                          "; use 1 or more");
  }
  if (options.pad_to_multiple < 1 ||
      (options.padding == TextPadding::kPacked && options.pad_to_multiple != 1)) {
    throw InvalidArgument("texts: pad_to_multiple is " + std::to_string(options.pad_to_multiple) +
                          "; use 1 or more, and 1 where sequences are packed");
  }
}

TextBatch collate_texts(std::span<const TokenizedText> texts, int64_t pad_id,
                        const CollateOptions& options) {
  check(options);
  if (texts.empty()) throw InvalidArgument("texts: a batch of no samples; give at least one index");
  const auto count = static_cast<int64_t>(texts.size());
  const bool packed = options.padding == TextPadding::kPacked;
  const int64_t columns = packed ? 0 : width(texts, options);
  int64_t total = 0;
  for (const TokenizedText& text : texts) total += length_of(text);
  TextBatch batch;
  batch.lengths = int64_tensor({count});
  batch.labels = int64_tensor({count});
  batch.input_ids = packed ? int64_tensor({total}) : int64_tensor({count, columns});
  batch.token_type_ids = packed ? int64_tensor({total}) : int64_tensor({count, columns});
  if (!packed) batch.attention_mask = int64_tensor({count, columns});
  int64_t* lengths = batch.lengths.mutable_data_ptr<int64_t>();
  int64_t* labels = batch.labels.mutable_data_ptr<int64_t>();
  int64_t* ids = batch.input_ids.mutable_data_ptr<int64_t>();
  int64_t* types = batch.token_type_ids.mutable_data_ptr<int64_t>();
  int64_t* mask = packed ? nullptr : batch.attention_mask.mutable_data_ptr<int64_t>();
  for (const TokenizedText& text : texts) {
    const int64_t length = *lengths++ = length_of(text);
    *labels++ = text.label;
    const int64_t padding = packed ? 0 : columns - length;
    ids = std::copy(text.ids.begin(), text.ids.end(), ids);
    ids = std::fill_n(ids, padding, pad_id);
    types = std::fill_n(types, text.second, 0);
    types = std::fill_n(types, length - text.second, 1);
    types = std::fill_n(types, padding, 0);
    if (!packed) mask = std::fill_n(std::fill_n(mask, length, 1), padding, 0);
  }
  return batch;
}

}  // namespace lockstep::inline v0::data
