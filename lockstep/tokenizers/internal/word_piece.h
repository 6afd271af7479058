// WordPiece: words to ids, the longest piece first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tokenizers/internal/piece_trie.h"

namespace lockstep::inline v0::tokenizers {

struct WordPieceModel {
  PieceTrie trie;                            // the vocabulary
  uint32_t continuation = PieceTrie::kRoot;  // the node after "##"; kNowhere if no piece has it
  int32_t unk_id = 0;
  size_t longest_word = 100;  // characters; a longer word is unknown
};

// Collects the bytes of a word and appends its ids at its end: the sink of BertCharacters::walk().
class WordPieceSink {
 public:
  WordPieceSink(const WordPieceModel& model, std::vector<int32_t>& ids)
      : model_(model), ids_(ids), word_(4 * model.longest_word, '\0') {}

  void bytes(const char* p, size_t count, size_t characters) {
    characters_ += characters;
    if (characters_ > model_.longest_word) return;
    std::memcpy(word_.data() + size_, p, count);
    size_ += count;
  }
  void space() {
    if (characters_ != 0) end_word();
  }
  void alone(int32_t id) {
    space();
    ids_.push_back(id);
  }

 private:
  void end_word() {
    const std::string_view word(word_.data(), size_);
    const bool known = characters_ <= model_.longest_word;
    characters_ = size_ = 0;
    const size_t former = ids_.size();
    uint32_t node = PieceTrie::kRoot;
    for (size_t at = 0; known && at < word.size(); node = model_.continuation) {
      const PieceTrie::Match match = model_.trie.longest(node, word.substr(at));
      if (match.length == 0) break;
      ids_.push_back(match.id);
      at += match.length;
      if (at == word.size()) return;
    }
    ids_.resize(former);
    ids_.push_back(model_.unk_id);
  }

  const WordPieceModel& model_;
  std::vector<int32_t>& ids_;
  std::string word_;
  size_t size_ = 0, characters_ = 0;
};

}  // namespace lockstep::inline v0::tokenizers
