#include "lockstep/tokenizers/internal/added_tokens.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/character_tables.h"

namespace lockstep::inline v0::tokenizers {
namespace {

bool within(std::span<const CharacterRange> ranges, char32_t code) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), code,
                       [](char32_t c, const auto& range) { return c < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->last;
}

// The last character of a non-empty text.
std::string_view last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 && (text[begin] & 0xc0) == 0x80) --begin;
  return text.substr(begin);
}

bool ends_in_word(std::string_view text) {
  return !text.empty() &&
         within(character_tables().word, utf8_character(last_character(text)).code);
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && within(character_tables().word, utf8_character(text).code);
}

// The number of bytes of white space at the end.
size_t space_at_end(std::string_view text) {
  const size_t size = text.size();
  while (!text.empty()) {
    const std::string_view last = last_character(text);
    if (!within(character_tables().token_space, utf8_character(last).code)) break;
    text.remove_suffix(last.size());
  }
  return size - text.size();
}

size_t space_at_begin(std::string_view text) {
  const size_t size = text.size();
  while (!text.empty()) {
    const Utf8Character first = utf8_character(text);
    if (!within(character_tables().token_space, first.code)) break;
    text.remove_prefix(first.length);
  }
  return size - text.size();
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_partition(tokens_.begin(), tokens_.end(),
                        [](const AddedToken& token) { return token.special; });
  int beginnings = 0;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (trie_.find(tokens_[i].content) == PieceTrie::kNoId)
      trie_.insert(tokens_[i].content, static_cast<int32_t>(i));
    only_begin_ = tokens_[i].content[0];
    bool& begins = begins_[static_cast<uint8_t>(only_begin_)];
    beginnings += !begins;
    begins = true;
  }
  one_begin_ = beginnings == 1;
}

bool AddedTokenFinder::find(std::string_view text, size_t& from, size_t done, Found& found) const {
  if (tokens_.empty()) return false;
  while (from < text.size()) {
    if (one_begin_) {
      from = std::min(text.find(only_begin_, from), text.size());
    } else {
      while (from < text.size() && !begins_[static_cast<uint8_t>(text[from])]) ++from;
    }
    if (from == text.size()) break;
    const auto match = trie_.longest(PieceTrie::kRoot, text.substr(from));
    if (match.length == 0) {
      ++from;
      continue;
    }
    const size_t begin = from, end = from + match.length;
    from = end;
    const AddedToken& token = tokens_[static_cast<size_t>(match.id)];
    if (token.single_word &&
        (ends_in_word(text.substr(0, begin)) || begins_with_word(text.substr(end)))) {
      continue;
    }
    found = {begin, end, token.id};
    if (token.lstrip && begin > done) found.begin -= space_at_end(text.substr(done, begin - done));
    if (token.rstrip) found.end += space_at_begin(text.substr(end));
    return true;
  }
  return false;
}

}  // namespace lockstep::inline v0::tokenizers
