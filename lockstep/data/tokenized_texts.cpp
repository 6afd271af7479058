#include "lockstep/data/tokenized_texts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/parallel_blocks.h"
#include "lockstep/data/collated.h"

namespace lockstep::inline v0::data {

// All sequences, concatenated.
struct TokenizedTexts::Sequences {
  std::vector<int32_t> ids;
  std::vector<int64_t> begins;  // the start of each in `ids`; one more than there are sequences
  // The start of the second text in the sequence; its length if there is none.
  std::vector<int64_t> seconds;
  std::vector<int64_t> lengths, labels;
  int64_t pad_id = 0;
};

TokenizedTexts::TokenizedTexts(std::span<const TextExample> examples,
                               const tokenizers::BertTokenizer& tokenizer,
                               const CollateOptions& options, int threads)
    : options_(options) {
  check(options);
  std::vector<tokenizers::Encoding> encodings(examples.size());
  const tokenizers::EncodeOptions encode{.max_length = options.max_length};
  constexpr int64_t kWorthAThread = 256;  // in texts
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
  check(other.options_);
  return other;
}

TokenizedText TokenizedTexts::operator[](int64_t index) const {
  const auto i = static_cast<size_t>(index);
  const Sequences& all = *sequences_;
  return {.ids = std::span(all.ids).subspan(static_cast<size_t>(all.begins[i]),
                                            static_cast<size_t>(all.lengths[i])),
          .second = all.seconds[i],
          .label = all.labels[i]};
}

int64_t TokenizedTexts::pad_id() const {
  return sequences_->pad_id;
}

TextBatch TokenizedTexts::batch(std::span<const int64_t> indices) const {
  return collate_texts(samples_at(*this, indices, "texts"), sequences_->pad_id, options_);
}

}  // namespace lockstep::inline v0::data
