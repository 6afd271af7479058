#include "lockstep/tokenizers/internal/gpt2_words.h"

#include "lockstep/core/utf8.h"

namespace lockstep::tokenizers {
namespace {

// The length of a contraction that `text` begins with, or 0.
size_t contraction(std::string_view text) {
  if (text[0] != '\'') return 0;
  for (const std::string_view known : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(known)) return known.size();
  }
  return 0;
}

}  // namespace

Gpt2Words::Gpt2Words() {
  const CharacterTables tables = character_tables();
  classes_.set(tables.letter, kLetter);
  classes_.set(tables.number, kNumber);
  classes_.set(tables.regex_space, kSpace);
}

Gpt2Words::Class Gpt2Words::class_of(std::string_view text, size_t at, size_t& length) const {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) {
    length = 1;
    return static_cast<Class>(classes_[byte]);
  }
  const Utf8Character character = utf8_character(text.substr(at));
  length = character.length;
  return static_cast<Class>(classes_[character.code]);
}

size_t Gpt2Words::end_of_run(std::string_view text, size_t at, Class wanted) const {
  size_t length = 0;
  while (at < text.size() && class_of(text, at, length) == wanted) at += length;
  return at;
}

// A run of white space leaves its last character to the word that follows, if there are two.
size_t Gpt2Words::spaces(std::string_view text) const {
  size_t at = 0, last = 0, length = 0;
  while (at < text.size() && class_of(text, at, length) == kSpace) {
    last = at;
    at += length;
  }
  return at == text.size() || last == 0 ? at : last;
}

size_t Gpt2Words::first_word(std::string_view text) const {
  if (const size_t length = contraction(text)) return length;
  size_t length = 0;
  const size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const Class wanted = class_of(text, begin, length);
  if (wanted == kSpace) return spaces(text);
  return end_of_run(text, begin + length, wanted);
}

}  // namespace lockstep::tokenizers
