// The action of BERT's normalizer and pre-tokenizer on each character, compiled into one table, and
// the walk along a text with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/character_map.h"

namespace lockstep::inline v0::tokenizers {

struct BertNormalization {  // nothing enabled: for a text that has been normalized
  bool clean_text = false, chinese_characters = false, strip_accents = false, lowercase = false;
};

struct OneCharacterWord {
  char32_t code;
  int32_t id;
};

// One table value is an action: its kind in the lowest three bits, its argument above.
enum class BertAction : uint32_t {
  kSame,     // the character unchanged; also within a sequence
  kOther,    // another character: its code
  kDrop,     // nothing
  kBarrier,  // nothing, but marks are not reordered across it
  kSpace,    // the end of a word
  kMark,     // a combining mark that stays: code, and its class from bit 21 of the value
  kAlone,    // a separate word: its id
  // Several actions: their position in the pool, which begins there with their number; 0: the jamo
  // of a Hangul syllable.
  kSequence,
};

// Compiled for one of two purposes, see the constructor. Immutable.
class BertCharacters {
 public:
  // For walking words: a character that is a word by itself (punctuation, Chinese) becomes its id,
  // looked up in `words`, or `unk_id`.
  BertCharacters(const BertNormalization& normalization, std::span<const OneCharacterWord> words,
                 int32_t unk_id);
  // For rewriting a text: spaces are characters like any other.
  explicit BertCharacters(const BertNormalization& normalization);

  // Tells the sink the contents of `text`:
  //   bytes(p, n, characters)  ordinary characters (several at once where they are ASCII)
  //   space()                  words: the end of one
  //   alone(id)                words: a word of one character
  template <class Sink>
  void walk(std::string_view text, Sink& sink) const;

 private:
  friend class BertCharacterCompiler;

  struct Mark {
    uint32_t combining_class;
    char32_t code;
  };
  // Marks that wait for the end of their run, when they get their canonical order.
  template <class Sink>
  class Run;

  CharacterMap actions_;
  std::vector<uint32_t> pool_ = {0};
  uint32_t ascii_[128] = {};
};

template <class Sink>
class BertCharacters::Run {
 public:
  explicit Run(Sink& sink) : sink_(sink) {}

  void mark(Mark mark) { marks_.push_back(mark); }
  void end() {
    if (!marks_.empty()) flush();
  }
  void character(char32_t code) {
    end();
    char bytes[4];
    sink_.bytes(bytes, encode(code, bytes), 1);
  }

 private:
  static size_t encode(char32_t code, char* bytes) {
    if (code < 0x80) {
      bytes[0] = static_cast<char>(code);
      return 1;
    }
    const size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length; --i > 0; code >>= 6) bytes[i] = static_cast<char>(0x80 | (code & 0x3f));
    bytes[0] = static_cast<char>((0xf00 >> length & 0xf0) | code);
    return length;
  }
  void flush() {
    std::stable_sort(marks_.begin(), marks_.end(), [](const Mark& a, const Mark& b) {
      return a.combining_class < b.combining_class;
    });
    const std::vector<Mark> marks = std::exchange(marks_, {});
    for (const Mark& mark : marks) character(mark.code);
  }

  Sink& sink_;
  std::vector<Mark> marks_;
};

template <class Sink>
void BertCharacters::walk(std::string_view text, Sink& sink) const {
  Run run(sink);
  const char* p = text.data();
  const char* const end = p + text.size();
  size_t length = 1;  // of the character at p
  const auto act = [&](uint32_t action) {
    const uint32_t value = action >> 3;
    switch (static_cast<BertAction>(action & 7)) {
      case BertAction::kSame:
        run.end();
        return sink.bytes(p, length, 1);
      case BertAction::kOther:
        return run.character(value);
      case BertAction::kBarrier:
        return run.end();
      case BertAction::kSpace:
        run.end();
        return sink.space();
      case BertAction::kMark:
        return run.mark({value >> 21, value & 0x1fffff});
      case BertAction::kAlone:
        run.end();
        return sink.alone(static_cast<int32_t>(value));
      default:  // kDrop; a sequence holds no sequence
        return;
    }
  };
  while (p < end) {
    const auto byte = static_cast<uint8_t>(*p);
    uint32_t action;
    char32_t code = byte;
    length = 1;
    if (byte < 0x80) {
      action = ascii_[byte];
      if (action == 0) {
        const char* const first = p;
        do ++p;
        while (p < end && static_cast<uint8_t>(*p) < 0x80 && ascii_[static_cast<uint8_t>(*p)] == 0);
        run.end();
        sink.bytes(first, static_cast<size_t>(p - first), static_cast<size_t>(p - first));
        continue;
      }
    } else {
      const Utf8Character character = utf8_character({p, static_cast<size_t>(end - p)});
      length = character.length;
      code = character.code;
      action = actions_[code];
      if (action == 0 && !character.valid) action = code << 3 | uint32_t{1};  // kOther
    }
    if (static_cast<BertAction>(action & 7) != BertAction::kSequence) {
      act(action);
    } else if (action >> 3 == 0) {
      const Jamo jamo = hangul_jamo(code);
      for (int i = 0; i < jamo.count; ++i) run.character(jamo.code[i]);
    } else {
      const uint32_t* next = &pool_[action >> 3];
      for (uint32_t left = *next; left > 0; --left) act(*++next);
    }
    p += length;
  }
  run.end();
}

}  // namespace lockstep::inline v0::tokenizers
