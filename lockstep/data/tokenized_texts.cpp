#include "lockstep/data/tokenized_texts.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/parallel_blocks.h"

namespace lockstep::data {
namespace {

void check_collation(const CollateOptions& options) {
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

at::Tensor int64_tensor(std::initializer_list<int64_t> shape) {
  return at::empty(shape, at::TensorOptions(at::kLong));
}

}  // namespace

// All sequences end to end.
struct TokenizedTexts::Sequences {
  std::vector<int32_t> ids;
  std::vector<int64_t> begins;   // where each begins in `ids`; one more than there are sequences
  std::vector<int64_t> seconds;  // where in the sequence the second text begins; its length if none
  std::vector<int64_t> lengths, labels;
  int64_t pad_id = 0;
};

TokenizedTexts::TokenizedTexts(std::span<const TextExample> examples,
                               const tokenizers::BertTokenizer& tokenizer,
                               const CollateOptions& options, int threads)
    : options_(options) {
  check_collation(options);
  std::vector<tokenizers::Encoding> encodings(examples.size());
  const tokenizers::EncodeOptions encode{.max_length = options.max_length};
  constexpr int64_t kWorthAThread = 256;  // texts
  parallel_blocks(static_cast<int64_t>(examples.size()), kWorthAThread, threads,
                  [&](int64_t begin, int64_t end) {
                    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
                      const TextExample& example = examples[i];
                      encodings[i] =
                          example.pair ? tokenizer.encode_pair(example.text, *example.pair, encode)
                                       : tokenizer.encode(example.text, encode);
                    }
                  });
  auto sequences = std::make_shared<Sequences>();
  sequences->pad_id = tokenizer.pad_id();
  sequences->begins.push_back(0);
  for (size_t i = 0; i < examples.size(); ++i) {
    const tokenizers::Encoding& encoding = encodings[i];
    sequences->ids.insert(sequences->ids.end(), encoding.ids.begin(), encoding.ids.end());
    sequences->begins.push_back(static_cast<int64_t>(sequences->ids.size()));
    const auto second = std::find(encoding.type_ids.begin(), encoding.type_ids.end(), 1);
    sequences->seconds.push_back(second - encoding.type_ids.begin());
    sequences->lengths.push_back(static_cast<int64_t>(encoding.ids.size()));
    sequences->labels.push_back(examples[i].label);
  }
  sequences_ = std::move(sequences);
}

TokenizedTexts::TokenizedTexts() : sequences_(std::make_shared<const Sequences>()) {}

int64_t TokenizedTexts::size() const {
  return static_cast<int64_t>(sequences_->labels.size());
}

const std::vector<int64_t>& TokenizedTexts::lengths() const {
  return sequences_->lengths;
}

const std::vector<int64_t>& TokenizedTexts::labels() const {
  return sequences_->labels;
}

const CollateOptions& TokenizedTexts::options() const {
  return options_;
}

TokenizedTexts TokenizedTexts::with_padding(TextPadding padding, int64_t pad_to_multiple) const {
  TokenizedTexts other = *this;
  other.options_.padding = padding;
  other.options_.pad_to_multiple = pad_to_multiple;
  check_collation(other.options_);
  return other;
}

int64_t TokenizedTexts::width(std::span<const int64_t> indices) const {
  if (options_.padding == TextPadding::kMaxLength) return options_.max_length;
  int64_t longest = 0;
  for (const int64_t index : indices)
    longest = std::max(longest, sequences_->lengths[static_cast<size_t>(index)]);
  const int64_t multiple = options_.pad_to_multiple, excess = longest % multiple;
  if (excess == 0) return longest;
  const int64_t missing = multiple - excess;
  return missing > options_.max_length - longest ? options_.max_length : longest + missing;
}

TextBatch TokenizedTexts::batch(std::span<const int64_t> indices) const {
  const auto count = static_cast<int64_t>(indices.size());
  if (count == 0) throw InvalidArgument("texts: a batch of no samples; give at least one index");
  int64_t total = 0;
  for (const int64_t index : indices) {
    if (index < 0 || index >= size()) {
      throw InvalidArgument("texts: index " + std::to_string(index) + " is outside 0.." +
                            std::to_string(size() - 1));
    }
    total += sequences_->lengths[static_cast<size_t>(index)];
  }
  const bool packed = options_.padding == TextPadding::kPacked;
  const int64_t columns = packed ? 0 : width(indices);
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
  for (const int64_t index : indices) {
    const auto i = static_cast<size_t>(index);
    const int64_t length = *lengths++ = sequences_->lengths[i];
    *labels++ = sequences_->labels[i];
    const int64_t padding = packed ? 0 : columns - length;
    ids = std::copy_n(&sequences_->ids[static_cast<size_t>(sequences_->begins[i])], length, ids);
    ids = std::fill_n(ids, padding, sequences_->pad_id);
    types = std::fill_n(types, sequences_->seconds[i], 0);
    types = std::fill_n(types, length - sequences_->seconds[i], 1);
    types = std::fill_n(types, padding, 0);
    if (!packed) mask = std::fill_n(std::fill_n(mask, length, 1), padding, 0);
  }
  return batch;
}

}  // namespace lockstep::data
