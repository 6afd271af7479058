// GPT-2's pre-tokenizer: the regular expression
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// with the character classes of the `tokenizers` library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/tokenizers/internal/character_map.h"

namespace lockstep::tokenizers {

// Immutable.
class Gpt2Words {
 public:
  Gpt2Words();

  // Bytes of the first word of `text`, which must be UTF-8 and not empty.
  size_t first_word(std::string_view text) const;

 private:
  enum Class : uint32_t { kOther, kLetter, kNumber, kSpace };

  Class class_of(std::string_view text, size_t at, size_t& length) const;
  size_t end_of_run(std::string_view text, size_t at, Class wanted) const;
  size_t spaces(std::string_view text) const;

  CharacterMap classes_;
};

}  // namespace lockstep::tokenizers
