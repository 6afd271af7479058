// Tokens that are found in a text before it is split into words: [CLS], <|endoftext|> and the like.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tokenizers/internal/piece_trie.h"

namespace lockstep::tokenizers {

// The fields of "added_tokens" in Hugging Face's tokenizer.json.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // not where a word character stands beside it
  bool lstrip = false;       // takes in the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // is looked for in the normalized text, not in the text as it is
  bool special = true;
};

// Finds tokens: the leftmost, of these the longest. Immutable.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // Tokens without content are left out. Of two with the same content, as normalization may make
  // them, the first special one, or else the first, is found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls text(part) and token(id) in the order of what they are in `text`; text() never with "".
  template <class Text, class Token>
  void split(std::string_view text, const Text& on_text, const Token& on_token) const {
    size_t done = 0, from = 0;
    Found found;
    while (find(text, from, done, found)) {
      if (found.begin > done) on_text(text.substr(done, found.begin - done));
      on_token(found.id);
      done = found.end;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

 private:
  struct Found {
    size_t begin = 0, end = 0;
    int32_t id = 0;
  };
  // The next one at or after `from`, which moves on; `done` is where the last one ended.
  bool find(std::string_view text, size_t& from, size_t done, Found& found) const;

  std::vector<AddedToken> tokens_;
  PieceTrie trie_;  // content to index in tokens_
  bool begins_[256] = {};
  char only_begin_ = 0;  // if all begin with the same byte: that one
  bool one_begin_ = false;
};

}  // namespace lockstep::tokenizers
