#include "lockstep/tokenizers/internal/character_tables.h"

#include "lockstep/tokenizers/internal/character_table_data.h"

namespace lockstep::inline v0::tokenizers {

CharacterTables character_tables() {
  return {.clean_removed = kCleanRemoved,
          .clean_space = kCleanSpace,
          .chinese = kChinese,
          .accent = kAccent,
          .accent_barrier = kAccentBarrier,
          .mark = kMark,
          .decomposed = kDecomposed,
          .lower = kLower,
          .lower_longer = kLowerLonger,
          .space = kSpace,
          .punctuation = kPunctuation,
          .letter = kLetter,
          .number = kNumber,
          .regex_space = kRegexSpace,
          .token_space = kTokenSpace,
          .word = kWord};
}

Jamo hangul_jamo(uint32_t syllable) {
  constexpr uint32_t kTrailing = 28, kVowels = 21;
  const uint32_t i = syllable - kFirstHangul;
  return {{0x1100 + i / (kVowels * kTrailing), 0x1161 + i / kTrailing % kVowels,
           0x11a7 + i % kTrailing},
          i % kTrailing == 0 ? 2 : 3};
}

}  // namespace lockstep::inline v0::tokenizers
