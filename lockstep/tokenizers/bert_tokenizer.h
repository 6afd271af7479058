// BertTokenizer: BERT's BasicTokenizer and WordPiece, with the same ids as Hugging Face's
// BertTokenizer (transformers 5, whose engine is the `tokenizers` library).
//
//   const auto tokenizer = BertTokenizer::load("bert-base-chinese");
//   const Encoding encoding = tokenizer.encode("今天天气很好");
//
// Method: Devlin et al., "BERT", 2018 (the reference tokenization.py); WordPiece is greedy, longest
// piece first. Character classes are those of the `tokenizers` library, see
// internal/character_tables.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/tokenizers/encoding.h"

namespace lockstep::inline v0::tokenizers {

// The options of a BertTokenizer, with the meanings of transformers' BertTokenizer.
struct BertTokenizerOptions {
  bool lowercase = true;                             // false: a cased vocabulary
  std::optional<bool> strip_accents = std::nullopt;  // absent: as lowercase
  bool chinese_characters = true;                    // each is a separate word
  bool clean_text = true;  // removes control characters, makes white space spaces
  // Special tokens, looked up in the vocabulary by these names.
  std::string unk_token = "[UNK]";
  std::string sep_token = "[SEP]";    // ends each text
  std::string pad_token = "[PAD]";    // fills up a batch
  std::string cls_token = "[CLS]";    // begins a sequence
  std::string mask_token = "[MASK]";  // hides a token
};

// Immutable. Cheap to copy: copies share everything. Texts are UTF-8; a malformed sequence counts
// as U+FFFD. A special token written in a text becomes that token.
// Thread-safety: all methods are const and may be called from any thread.
class LOCKSTEP_API BertTokenizer {
 public:
  // Reads vocab.txt: one token per line, split at '\n' alone (a '\r' before it is removed); the id
  // is the line's number from 0. A byte order mark and empty lines at the end are ignored; the
  // later id of a repeated token applies, as in transformers.
  // Throws: DataError that names the file and the line: missing, not UTF-8, empty, no [UNK], [CLS],
  // [SEP], [PAD].
  static BertTokenizer from_vocab(const std::filesystem::path& file,
                                  const BertTokenizerOptions& options = {});
  // The same from tokens in memory; `name` replaces the file in messages.
  static BertTokenizer from_tokens(std::vector<std::string> tokens,
                                   const BertTokenizerOptions& options = {},
                                   std::string_view name = "vocabulary");
  // Reads Hugging Face's tokenizer.json: normalizer BertNormalizer, pre-tokenizer BertPreTokenizer,
  // model WordPiece, post-processor TemplateProcessing or BertProcessing in BERT's form, decoder
  // WordPiece; added tokens with all their options. "truncation" and "padding" are not used: calls
  // specify them.
  // Throws: DataError for a malformed file, and for settings that would tokenise differently.
  static BertTokenizer from_tokenizer_json(const std::filesystem::path& file);
  static BertTokenizer parse_tokenizer_json(std::string_view json, std::string_view name);
  // Reads one of these files (by its ending), or a directory with tokenizer.json, or otherwise with
  // vocab.txt and perhaps tokenizer_config.json (for do_lower_case, strip_accents,
  // tokenize_chinese_chars and the special tokens' names). `fallback` supplies options that neither
  // file sets.
  // Throws: DataError.
  static BertTokenizer load(const std::filesystem::path& path,
                            const BertTokenizerOptions& fallback = {});
  // vocab.txt and tokenizer_config.json, which load() and transformers read, by name. If a
  // tokenizer.json with more information (added tokens) was read, that file replaces vocab.txt.
  std::map<std::string, std::string> files() const;
  // Writes them into an existing directory, each whole or not at all.
  // Throws: SystemError.
  void save(const std::filesystem::path& directory) const;

  // Throws InvalidArgument if options.max_length has no room for the special tokens, or the text
  // cannot be cut as requested.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode_pair(std::string_view text, std::string_view pair,
                       const EncodeOptions& options = {}) const;
  // Encodes many texts by several threads, in the given order. `pairs` is empty or as long as
  // `texts`.
  std::vector<Encoding> encode_batch(std::span<const std::string> texts,
                                     const EncodeOptions& options = {},
                                     const BatchOptions& batch = {},
                                     std::span<const std::string> pairs = {}) const;
  // Appends the ids of the bare text: no special tokens, not cut.
  void append_ids(std::string_view text, std::vector<int32_t>& ids) const;

  // The text as normalized before it is split into words.
  std::string normalize(std::string_view text) const;
  std::vector<std::string> tokenize(std::string_view text) const;

  // The text of the ids: pieces joined, spaces between words, none before punctuation, like Hugging
  // Face's clean-up.
  // Throws: InvalidArgument for an id outside 0..vocabulary_size()-1.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  int64_t vocabulary_size() const;                             // added tokens included
  std::optional<int32_t> id_of(std::string_view token) const;  // nullopt: there is no such token
  const std::string& token_of(int32_t id) const;               // throws InvalidArgument

  int32_t unk_id() const;                       // of an unknown word
  int32_t sep_id() const;                       // of the token that ends each text
  int32_t pad_id() const;                       // of padding
  int32_t cls_id() const;                       // of the token that begins a sequence
  std::optional<int32_t> mask_id() const;       // a vocabulary may lack it
  const BertTokenizerOptions& options() const;  // as given or read

 private:
  struct State;
  explicit BertTokenizer(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace lockstep::inline v0::tokenizers
