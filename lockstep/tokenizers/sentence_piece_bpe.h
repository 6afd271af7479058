// SentencePieceBpe: byte-pair encoding of characters as SentencePiece does it (Kudo and Richardson,
// arXiv:1808.06226), of Llama 2, Mistral and their kin: a space is U+2581, a character that the vocabulary
// lacks is its bytes. Id for id what Hugging Face's `tokenizers` library gives.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::tokenizers {

// Immutable; all methods are const and may be called from any thread. Cheap to copy: copies share
// everything. Texts are UTF-8; a malformed sequence counts as U+FFFD.
class SentencePieceBpe {
 public:
  // Hugging Face's tokenizer.json: a normalizer that prepends U+2581 and replaces spaces by it, or a
  // pre-tokenizer Metaspace that does not split; model BPE without dropout, prefix or suffix; decoder
  // Replace, ByteFallback, Fuse and perhaps Strip; added tokens with all their options; a
  // TemplateProcessing may put tokens before a text: begin_of_text(). Throws DataError: malformed, or
  // anything that would tokenise otherwise.
  static SentencePieceBpe parse_tokenizer_json(std::string_view json, std::string_view name);
  static SentencePieceBpe from_tokenizer_json(const std::filesystem::path& file);
  // Whether a tokenizer.json is of this kind, by its decoder. Throws DataError if it is not JSON.
  static bool is_one(std::string_view json, std::string_view name);

  std::vector<int32_t> encode(std::string_view text) const;
  std::vector<std::string> tokenize(std::string_view text) const;
  // The text of the ids; bytes that are not UTF-8 become U+FFFD each. Throws InvalidArgument for an id
  // outside 0..vocabulary_size()-1.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  int64_t vocabulary_size() const;
  std::optional<int32_t> id_of(std::string_view token) const;
  const std::string& token_of(int32_t id) const;  // throws InvalidArgument
  std::optional<int32_t> end_of_text_id() const;
  // What the library puts before every text; encode() does not.
  const std::vector<int32_t>& begin_of_text() const;

 private:
  struct State;
  explicit SentencePieceBpe(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace lockstep::tokenizers
