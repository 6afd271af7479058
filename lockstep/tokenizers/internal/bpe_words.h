// How byte-level tokenizers cut a text into words, by the regular expressions of
//   GPT-2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   Llama 3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// with the character classes of the `tokenizers` library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/tokenizers/internal/character_map.h"

namespace lockstep::inline v0::tokenizers {

enum class WordPattern : uint8_t { kGpt2, kLlama3 };

// The pattern with this text, if it is one of the above.
std::optional<WordPattern> word_pattern(std::string_view expression);

// Immutable.
class BpeWords {
 public:
  explicit BpeWords(WordPattern pattern = WordPattern::kGpt2);

  // Bytes of the first word of `text`, which must be UTF-8 and not empty.
  size_t first_word(std::string_view text) const {
    return pattern_ == WordPattern::kGpt2 ? gpt2_word(text) : llama3_word(text);
  }

 private:
  enum Class : uint32_t { kOther, kLetter, kNumber, kSpace };

  size_t gpt2_word(std::string_view text) const;
  size_t llama3_word(std::string_view text) const;
  Class class_of(std::string_view text, size_t at, size_t& length) const;
  size_t end_of_run(std::string_view text, size_t at, Class wanted) const;
  size_t spaces(std::string_view text) const;

  WordPattern pattern_;
  CharacterMap classes_;
};

}  // namespace lockstep::inline v0::tokenizers
