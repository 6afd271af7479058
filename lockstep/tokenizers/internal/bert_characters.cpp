#include "lockstep/tokenizers/internal/bert_characters.h"

#include <algorithm>
#include <span>

namespace lockstep::inline v0::tokenizers {
namespace {

constexpr uint32_t action_of(BertAction kind, uint32_t value = 0) {
  return value << 3 | static_cast<uint32_t>(kind);
}

// Facts about a character, from the tables.
enum : uint32_t {
  kIsRemoved = 1 << 0,
  kIsCleanSpace = 1 << 1,
  kIsAccent = 1 << 2,
  kIsBarrier = 1 << 3,
  kIsSpace = 1 << 4,
  kIsPunctuation = 1 << 5,
  kClassShift = 8,  // the combining class of a mark that is kept
};

}  // namespace

// The steps of the `tokenizers` library's BertNormalizer in their order, for one character after
// another.
class BertCharacterCompiler {
 public:
  BertCharacterCompiler(const BertNormalization& normalization, BertCharacters& result)
      : normalization_(normalization), result_(result) {}

  void compile_words(std::span<const OneCharacterWord> words, int32_t unk_id) {
    note(tables_.space, kIsSpace);
    note(tables_.punctuation, kIsPunctuation);
    for (const OneCharacterWord& word : words)
      ids_.set(word.code, static_cast<uint32_t>(word.id - unk_id));
    unk_id_ = static_cast<uint32_t>(unk_id);
    run(alone(0), words);
  }
  void compile_rewriting() {
    const uint32_t space = action_of(BertAction::kOther, U' ');
    run(sequence({space, action_of(BertAction::kSame), space}), {});
  }

 private:
  // `chinese`: the action for an ordinary Chinese character.
  void run(uint32_t chinese, std::span<const OneCharacterWord> words) {
    if (normalization_.chinese_characters) result_.actions_.set(tables_.chinese, chinese);
    for (const OneCharacterWord& word : words) {
      if (is_chinese(word.code)) result_.actions_.set(word.code, alone(word.code));
    }
    collect();
    if (normalization_.strip_accents) {
      const CharacterRange hangul{kFirstHangul, kLastHangul};
      result_.actions_.set({&hangul, 1}, action_of(BertAction::kSequence, 0));
    }
    for (const CharacterRange& range : concerned_) {
      for (uint32_t code = range.first; code <= range.last; ++code) compile(code);
    }
    for (uint32_t code = 0; code < 128; ++code) result_.ascii_[code] = result_.actions_[code];
  }

  uint32_t alone(char32_t code) const {
    return action_of(BertAction::kAlone, unk_id_ + ids_[code]);
  }
  uint32_t sequence(const std::vector<uint32_t>& actions) {
    const uint32_t action =
        action_of(BertAction::kSequence, static_cast<uint32_t>(result_.pool_.size()));
    result_.pool_.push_back(static_cast<uint32_t>(actions.size()));
    result_.pool_.insert(result_.pool_.end(), actions.begin(), actions.end());
    return action;
  }
  bool is_chinese(char32_t code) const {
    return normalization_.chinese_characters &&
           std::any_of(tables_.chinese.begin(), tables_.chinese.end(), [&](const auto& range) {
             return range.first <= code && code <= range.last;
           });
  }

  void note(std::span<const CharacterRange> ranges, uint32_t fact) {
    for (const CharacterRange& range : ranges) {
      for (uint32_t code = range.first; code <= range.last; ++code)
        facts_.set(code, facts_[code] | fact);
    }
    concerned_.insert(concerned_.end(), ranges.begin(), ranges.end());
  }
  void note_marks(std::span<const CombiningRange> ranges) {
    for (const CombiningRange& range : ranges) {
      const CharacterRange codes{range.first, range.last};
      note({&codes, 1}, range.combining_class << kClassShift);
    }
  }
  // `into` maps each character to the start of its sequence in `sequences`.
  void note_sequences(std::span<const uint32_t> sequences, CharacterMap& into) {
    for (size_t i = 0; i < sequences.size(); i += 2 + sequences[i + 1]) {
      into.set(sequences[i], static_cast<uint32_t>(i + 1));
      concerned_.push_back({sequences[i], sequences[i]});
    }
  }

  void collect() {
    if (normalization_.clean_text) {
      note(tables_.clean_removed, kIsRemoved);
      note(tables_.clean_space, kIsCleanSpace);
    }
    if (normalization_.strip_accents) {
      note(tables_.accent, kIsAccent);
      note(tables_.accent_barrier, kIsBarrier);
      note_marks(tables_.mark);
      note_sequences(tables_.decomposed, decomposed_);
    }
    if (normalization_.lowercase) {
      for (const LowerRange& range : tables_.lower) {
        for (uint32_t code = range.first; code <= range.last; code += range.stride) {
          lower_.set(code, static_cast<uint32_t>(static_cast<int32_t>(code) + range.distance));
          concerned_.push_back({code, code});
        }
      }
      note_sequences(tables_.lower_longer, lower_longer_);
    }
  }

  void compile(char32_t code) {
    actions_.clear();
    clean(code);
    if (actions_.size() == 1 && actions_[0] == action_of(BertAction::kOther, code)) return;
    // A Chinese character between its spaces is a word by itself.
    const uint32_t space = action_of(BertAction::kSpace);
    if (actions_.size() == 3 && actions_[0] == space && actions_[2] == space &&
        kind(actions_[1]) == BertAction::kOther) {
      actions_ = {alone(actions_[1] >> 3)};
    }
    result_.actions_.set(code, actions_.empty()       ? action_of(BertAction::kDrop)
                               : actions_.size() == 1 ? actions_[0]
                                                      : sequence(actions_));
  }
  static BertAction kind(uint32_t action) { return static_cast<BertAction>(action & 7); }

  void clean(char32_t code) {
    const uint32_t facts = facts_[code];
    if (facts & kIsRemoved) return;
    if (facts & kIsCleanSpace) code = U' ';
    if (!is_chinese(code)) return decompose(code);
    finish(U' ');
    decompose(code);
    finish(U' ');
  }

  void decompose(char32_t code) {
    if (!normalization_.strip_accents) return lower(code);
    const uint32_t facts = facts_[code];
    if (facts & (kIsAccent | kIsBarrier)) {
      if (facts & kIsBarrier) actions_.push_back(action_of(BertAction::kBarrier));
    } else if (const uint32_t at = decomposed_[code]; at != 0) {
      for (uint32_t i = 1; i <= tables_.decomposed[at]; ++i) lower(tables_.decomposed[at + i]);
    } else {
      lower(code);
    }
  }

  void lower(char32_t code) {
    if (const uint32_t at = lower_longer_[code]; at != 0) {
      for (uint32_t i = 1; i <= tables_.lower_longer[at]; ++i) finish(tables_.lower_longer[at + i]);
    } else {
      finish(lower_[code] != 0 ? lower_[code] : code);
    }
  }

  void finish(char32_t code) {
    const uint32_t facts = facts_[code];
    if (facts & kIsSpace) {
      actions_.push_back(action_of(BertAction::kSpace));
    } else if (facts & kIsPunctuation) {
      actions_.push_back(alone(code));
    } else if (facts >> kClassShift != 0) {
      actions_.push_back(action_of(BertAction::kMark, (facts >> kClassShift) << 21 | code));
    } else {
      actions_.push_back(action_of(BertAction::kOther, code));
    }
  }

  const CharacterTables tables_ = character_tables();
  const BertNormalization normalization_;
  BertCharacters& result_;
  CharacterMap facts_, decomposed_, lower_, lower_longer_;
  CharacterMap ids_;  // ids of one-character words, minus unk_id_
  uint32_t unk_id_ = 0;
  std::vector<CharacterRange> concerned_;  // all characters that may need a change
  std::vector<uint32_t> actions_;          // of the current character
};

BertCharacters::BertCharacters(const BertNormalization& normalization,
                               std::span<const OneCharacterWord> words, int32_t unk_id) {
  BertCharacterCompiler(normalization, *this).compile_words(words, unk_id);
}

BertCharacters::BertCharacters(const BertNormalization& normalization) {
  BertCharacterCompiler(normalization, *this).compile_rewriting();
}

}  // namespace lockstep::inline v0::tokenizers
