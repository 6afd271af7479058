// Tokens that are found in a text before it is split into words: [CLS], <|endoftext|> and the like.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tokenizers/internal/piece_trie.h"

namespace lockstep::inline v0::tokenizers {

// The fields of "added_tokens" in Hugging Face's tokenizer.json.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // not beside a word character
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // matched in the normalized text instead of the original
  bool special = true;
};

// Finds tokens: the leftmost and, of these, the longest. Immutable.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // Ignores tokens without content. Of two with the same content, which normalization may cause,
  // the first special one, or otherwise the first, is found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls text(part) and token(id) in the order of `text`; never text("").
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
  // The next one at or after `from`, which advances; `done` is the end of the last one.
  bool find(std::string_view text, size_t& from, size_t done, Found& found) const;

  std::vector<AddedToken> tokens_;
  PieceTrie trie_;  // content to index in tokens_
  bool begins_[256] = {};
  char only_begin_ = 0;  // if all begin with the same byte: that byte
  bool one_begin_ = false;
};

}  // namespace lockstep::inline v0::tokenizers
