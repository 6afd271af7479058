// SentencePieceBpe: SentencePiece's byte-pair encoding of characters (Kudo and Richardson,
// arXiv:1808.06226), as in Llama 2, Mistral and similar models: a space is U+2581, and a character
// that the vocabulary lacks becomes its bytes. It gives the same ids as Hugging Face's `tokenizers`
// library.
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

// Immutable. Cheap to copy: copies share everything. Texts are UTF-8; a malformed sequence counts
// as U+FFFD.
// Thread-safety: all methods are const and may be called from any thread.
class LOCKSTEP_API SentencePieceBpe {
 public:
  // Reads Hugging Face's tokenizer.json: a normalizer that prepends U+2581 and replaces spaces by
  // it, or a pre-tokenizer Metaspace that does not split; model BPE without dropout, prefix or
  // suffix; decoder Replace, ByteFallback, Fuse and perhaps Strip; added tokens with all their
  // options; a TemplateProcessing may put tokens before a text: begin_of_text().
  // Throws: DataError for a malformed file, and for settings that would tokenise differently.
  static SentencePieceBpe parse_tokenizer_json(std::string_view json, std::string_view name);
  static SentencePieceBpe from_tokenizer_json(const std::filesystem::path& file);
  // Whether a tokenizer.json is of this kind, by its decoder.
  // Throws: DataError if it is not JSON.
  static bool is_one(std::string_view json, std::string_view name);

  // The ids of a text; no special tokens are added.
  std::vector<int32_t> encode(std::string_view text) const;
  std::vector<std::string> tokenize(std::string_view text) const;  // the tokens of a text
  // The text of the ids; each byte that is not UTF-8 becomes U+FFFD.
  // Throws: InvalidArgument for an id outside 0..vocabulary_size()-1.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  int64_t vocabulary_size() const;                             // added tokens included
  std::optional<int32_t> id_of(std::string_view token) const;  // nullopt: there is no such token
  const std::string& token_of(int32_t id) const;               // throws InvalidArgument
  std::optional<int32_t> end_of_text_id() const;               // nullopt: the vocabulary lacks it
  // The tokens that the library puts before every text; encode() does not.
  const std::vector<int32_t>& begin_of_text() const;

 private:
  struct State;
  explicit SentencePieceBpe(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace lockstep::inline v0::tokenizers
