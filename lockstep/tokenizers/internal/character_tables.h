// How Hugging Face's `tokenizers` sees each character: tables made by scripts/tokenizer-tables from
// the library itself, whose Unicode data are of several ages and agree with no one version.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::inline v0::tokenizers {

struct CharacterRange {
  uint32_t first, last;
};
struct CombiningRange {
  uint32_t first, last, combining_class;
};
struct LowerRange {  // every `stride`-th character of first..last is `distance` from its lower case
  uint32_t first, last, stride;
  int32_t distance;
};

struct CharacterTables {
  // BertNormalizer.
  std::span<const CharacterRange> clean_removed;
  std::span<const CharacterRange> clean_space;
  std::span<const CharacterRange> chinese;
  std::span<const CharacterRange> accent;
  std::span<const CharacterRange> accent_barrier;
  std::span<const CombiningRange> mark;
  std::span<const uint32_t> decomposed;  // a character, how many it becomes, these; and so on
  std::span<const LowerRange> lower;
  std::span<const uint32_t> lower_longer;  // as decomposed
  // BertPreTokenizer.
  std::span<const CharacterRange> space;
  std::span<const CharacterRange> punctuation;
  // GPT-2's regular expression.
  std::span<const CharacterRange> letter;
  std::span<const CharacterRange> number;
  std::span<const CharacterRange> regex_space;
  // Added tokens.
  std::span<const CharacterRange> token_space;
  std::span<const CharacterRange> word;
};

CharacterTables character_tables();

// Hangul syllables decompose by arithmetic (Unicode 15, section 3.12) and are not in the tables.
inline constexpr uint32_t kFirstHangul = 0xac00, kLastHangul = 0xd7a3;
struct Jamo {
  uint32_t code[3];
  int count;
};
Jamo hangul_jamo(uint32_t syllable);

}  // namespace lockstep::inline v0::tokenizers
