// Texts as token ids in memory: a Dataset whose batches are TextBatches.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/data/text_classification.h"
#include "lockstep/data/text_collation.h"
#include "lockstep/tokenizers/bert_tokenizer.h"

namespace lockstep::inline v0::data {

// Tokenises its texts when it is made and keeps the ids. Cheap to copy: copies share them.
// Thread-safety: all methods are const and may be called from any thread.
class LOCKSTEP_API TokenizedTexts {
 public:
  // No texts.
  TokenizedTexts();

  // The examples and the tokenizer are read now, not kept. Texts longer than max_length are cut,
  // the longest text first. `threads` tokenise; 0: the number of processors for this process.
  // Throws: InvalidArgument for options out of range.
  TokenizedTexts(std::span<const TextExample> examples, const tokenizers::BertTokenizer& tokenizer,
                 const CollateOptions& options = {}, int threads = 0);

  int64_t size() const;  // the number of texts
  // Throws InvalidArgument for an index outside 0..size()-1, and for no indices.
  TextBatch batch(std::span<const int64_t> indices) const;

  // A sequence, whose ids lie in this object and its copies, for an index in 0..size()-1. Collated
  // uses it to make batches by a custom function.
  TokenizedText operator[](int64_t index) const;
  int64_t pad_id() const;  // the tokenizer's id of padding

  // Tokens of each sequence after cutting, including special ones: for LengthGroupedSampler.
  const std::vector<int64_t>& lengths() const;
  // [size()]; -1 where unknown.
  const std::vector<int64_t>& labels() const;
  const CollateOptions& options() const;  // as given

  // The same sequences with another batch form.
  // Throws: InvalidArgument as the constructor.
  TokenizedTexts with_padding(TextPadding padding, int64_t pad_to_multiple = 1) const;

 private:
  struct Sequences;

  std::shared_ptr<const Sequences> sequences_;
  CollateOptions options_;
};

}  // namespace lockstep::inline v0::data
