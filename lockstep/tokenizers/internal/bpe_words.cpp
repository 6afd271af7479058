#include "lockstep/tokenizers/internal/bpe_words.h"

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/character_tables.h"

namespace lockstep::inline v0::tokenizers {
namespace {

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::string_view kContractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

// The length of the contraction that `text` begins with, or 0.
size_t contraction(std::string_view text) {
  if (text[0] != '\'') return 0;
  for (const std::string_view known : kContractions) {
    if (text.starts_with(known)) return known.size();
  }
  return 0;
}

// The same, ignoring case. U+017F, the long s, is an s without case.
size_t contraction_in_any_case(std::string_view text) {
  constexpr std::string_view kLongS = "\u017f";
  if (text[0] != '\'') return 0;
  if (text.substr(1).starts_with(kLongS)) return 1 + kLongS.size();
  for (const std::string_view known : kContractions) {
    size_t same = 1;
    while (same < known.size() && same < text.size() && (text[same] | 0x20) == known[same]) ++same;
    if (same == known.size()) return same;
  }
  return 0;
}

bool is_line_end(char byte) {
  return byte == '\r' || byte == '\n';
}

}  // namespace

std::optional<WordPattern> word_pattern(std::string_view expression) {
  if (expression == kGpt2) return WordPattern::kGpt2;
  if (expression == kLlama3) return WordPattern::kLlama3;
  return std::nullopt;
}

BpeWords::BpeWords(WordPattern pattern) : pattern_(pattern) {
  const CharacterTables tables = character_tables();
  classes_.set(tables.letter, kLetter);
  classes_.set(tables.number, kNumber);
  classes_.set(tables.regex_space, kSpace);
}

BpeWords::Class BpeWords::class_of(std::string_view text, size_t at, size_t& length) const {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) {
    length = 1;
    return static_cast<Class>(classes_[byte]);
  }
  const Utf8Character character = utf8_character(text.substr(at));
  length = character.length;
  return static_cast<Class>(classes_[character.code]);
}

size_t BpeWords::end_of_run(std::string_view text, size_t at, Class wanted) const {
  size_t length = 0;
  while (at < text.size() && class_of(text, at, length) == wanted) at += length;
  return at;
}

// A run of white space leaves its last character to the following word, if it has at least two.
size_t BpeWords::spaces(std::string_view text) const {
  size_t at = 0, last = 0, length = 0;
  while (at < text.size() && class_of(text, at, length) == kSpace) {
    last = at;
    at += length;
  }
  return at == text.size() || last == 0 ? at : last;
}

size_t BpeWords::gpt2_word(std::string_view text) const {
  if (const size_t length = contraction(text)) return length;
  size_t length = 0;
  const size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const Class wanted = class_of(text, begin, length);
  if (wanted == kSpace) return spaces(text);
  return end_of_run(text, begin + length, wanted);
}

// Tries the expression's alternatives in their order.
size_t BpeWords::llama3_word(std::string_view text) const {
  if (const size_t length = contraction_in_any_case(text)) return length;
  size_t length = 0, next_length = 0;
  const Class first = class_of(text, 0, length);
  const bool more = length < text.size();
  const Class next = more ? class_of(text, length, next_length) : kSpace;
  if (first == kLetter) return end_of_run(text, length, kLetter);
  if (first != kNumber && !is_line_end(text[0]) && more && next == kLetter)
    return end_of_run(text, length + next_length, kLetter);
  if (first == kNumber) {
    constexpr int kMostDigits = 3;
    size_t at = length;
    for (int digits = 1; digits < kMostDigits && at < text.size(); ++digits) {
      if (class_of(text, at, next_length) != kNumber) break;
      at += next_length;
    }
    return at;
  }
  if (first == kOther || (text[0] == ' ' && more && next == kOther)) {
    size_t at = end_of_run(text, first == kOther ? length : length + next_length, kOther);
    while (at < text.size() && is_line_end(text[at])) ++at;
    return at;
  }
  // White space: up to its last line end, otherwise all except the part that belongs to the next
  // word.
  const size_t run = end_of_run(text, 0, kSpace);
  const size_t line_end = text.substr(0, run).find_last_of("\r\n");
  return line_end != std::string_view::npos ? line_end + 1 : spaces(text);
}

}  // namespace lockstep::inline v0::tokenizers
