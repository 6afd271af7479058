// LmTokenizer: the tokenizer of a language model, of any kind, with its files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/tokenizers/byte_level_bpe.h"
#include "lockstep/tokenizers/characters.h"
#include "lockstep/tokenizers/sentence_piece_bpe.h"

namespace lockstep::inline v0::tokenizers {

// Immutable.
// Thread-safety: all methods are const and may be called from any thread.
class LOCKSTEP_API LmTokenizer {
 public:
  explicit LmTokenizer(Characters characters);

  // Reads a characters.json or a tokenizer.json (GPT-2's and Llama 3's: byte_level_bpe.h; Llama
  // 2's: sentence_piece_bpe.h); or a directory with one of them, or otherwise with vocab.json and
  // merges.txt.
  // Throws: DataError that names the file.
  static LmTokenizer load(const std::filesystem::path& path);

  int64_t vocabulary_size() const;  // added tokens included
  // Throws DataError for a character without a token, where tokens are characters.
  std::vector<int32_t> encode(std::string_view text) const;
  // Special tokens are left out.
  // Throws: InvalidArgument for an id outside 0..vocabulary_size()-1.
  std::string decode(std::span<const int32_t> ids) const;
  // The tokens that models of this kind expect before a text; encode() does not return them.
  std::vector<int32_t> begin_of_text() const;
  // The token that ends a text, where there is one.
  std::optional<int32_t> end_of_text_id() const;

  // The original files by name: for a checkpoint, from which load() makes the same tokenizer.
  const std::map<std::string, std::string>& files() const { return files_; }

 private:
  using Kind = std::variant<Characters, ByteLevelBpe, SentencePieceBpe>;
  LmTokenizer(Kind kind, std::map<std::string, std::string> files);

  Kind kind_;
  std::map<std::string, std::string> files_;
};

}  // namespace lockstep::inline v0::tokenizers
