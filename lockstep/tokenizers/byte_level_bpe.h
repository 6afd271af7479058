// ByteLevelBpe: the byte-pair encoding of GPT-2 and of Llama 3, with the same ids as Hugging Face's
// GPT2Tokenizer and the `tokenizers` library.
//
// Method: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016, on
// the bytes of UTF-8 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::tokenizers {

// The options of a ByteLevelBpe.
struct ByteLevelBpeOptions {
  bool add_prefix_space = false;  // prepends a space to a text without one
  // The special token; a vocabulary may lack it. In a tokenizer.json also Llama 3's
  // <|end_of_text|>.
  std::string end_of_text = "<|endoftext|>";
};

// Immutable. Cheap to copy: copies share everything. Texts are UTF-8; a malformed sequence counts
// as U+FFFD. A byte without a token is left out, as in the library (GPT-2's vocabulary has all
// 256).
// Thread-safety: all methods are const and may be called from any thread.
class LOCKSTEP_API ByteLevelBpe {
 public:
  // Reads vocab.json (an object of tokens and their ids) and merges.txt (two tokens per line; the
  // first line may be "#version: ...").
  // Throws: DataError that names the file and the line: missing, not UTF-8, malformed, ids other
  // than 0..n-1, a merge of tokens that are not in the vocabulary.
  static ByteLevelBpe from_files(const std::filesystem::path& vocabulary,
                                 const std::filesystem::path& merges,
                                 const ByteLevelBpeOptions& options = {});
  // The same for files in memory; the names replace them in messages.
  static ByteLevelBpe parse_files(std::string_view vocabulary, std::string_view merges,
                                  const ByteLevelBpeOptions& options = {},
                                  std::string_view vocabulary_name = "vocab.json",
                                  std::string_view merges_name = "merges.txt");
  // Reads Hugging Face's tokenizer.json: no normalizer; pre-tokenizer ByteLevel, or a Split by
  // Llama 3's expression before it; decoder ByteLevel; model BPE without dropout, unknown token,
  // prefix or suffix; added tokens with all their options. A TemplateProcessing may put tokens
  // before a text: begin_of_text().
  // Throws: DataError for a malformed file, and for settings that would tokenise differently.
  static ByteLevelBpe from_tokenizer_json(const std::filesystem::path& file);
  static ByteLevelBpe parse_tokenizer_json(std::string_view json, std::string_view name);
  // Reads a tokenizer.json, or a directory with one, or otherwise with vocab.json and merges.txt.
  static ByteLevelBpe load(const std::filesystem::path& path);

  // The ids of a text; no special tokens are added.
  std::vector<int32_t> encode(std::string_view text) const;
  // Encodes many texts by several threads (0: one per processor), in the given order.
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string> texts,
                                                 int threads = 0) const;
  std::vector<std::string> tokenize(std::string_view text) const;

  // The text of the ids; bytes that are not UTF-8 become U+FFFD.
  // Throws: InvalidArgument for an id outside 0..vocabulary_size()-1.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  int64_t vocabulary_size() const;  // added tokens included
  // Tokens as the vocabulary writes them: a byte is a printable character, a space U+0120.
  std::optional<int32_t> id_of(std::string_view token) const;
  const std::string& token_of(int32_t id) const;  // throws InvalidArgument
  std::optional<int32_t> end_of_text_id() const;  // nullopt: the vocabulary lacks it
  // The tokens that the library puts before every text; encode() does not.
  const std::vector<int32_t>& begin_of_text() const;

 private:
  struct State;
  explicit ByteLevelBpe(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace lockstep::inline v0::tokenizers
