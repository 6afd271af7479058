#include "lockstep/tokenizers/internal/bpe_state.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {

ByteLevelBpe::State::State(BpeParts parts)
    : options(parts.options),
      tokens(parts.tokens),
      special(parts.tokens.size()),
      words_(parts.pattern) {
  const ByteAlphabet alphabet;
  for (const std::string& token : tokens) {
    ids_.emplace(token, static_cast<int32_t>(ids_.size()));
    bytes.push_back(alphabet.bytes_of(token).value_or(token));
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, alphabet.character(static_cast<uint8_t>(byte)));
    merges_.set_byte(static_cast<uint8_t>(byte), id_of(token).value_or(-1));
  }
  add_merges(parts);
  if (parts.ignore_merges) {
    for (size_t id = 0; id < parts.vocabulary; ++id)
      whole_words_.emplace(bytes[id], static_cast<int32_t>(id));
  }
  end_of_text_id = id_of(options.end_of_text);
  for (const std::string& token : parts.begin_of_text) {
    const auto id = id_of(token);
    if (!id)
      refuse(parts.name,
             "post_processor has the token " + shown(token) + ", which the vocabulary lacks");
    begin_of_text.push_back(*id);
  }

  std::vector<AddedToken> raw, normalized;
  for (AddedToken& token : parts.added) {
    if (token.id < 0) token.id = id_of(token.content).value_or(-1);
    if (token.id < 0) continue;
    if (token.special) special[static_cast<size_t>(token.id)] = true;
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  raw_ = AddedTokenFinder(std::move(raw));
  normalized_ = AddedTokenFinder(std::move(normalized));
}

void ByteLevelBpe::State::add_merges(const BpeParts& parts) {
  int64_t number = 0;
  for (const auto& [left, right] : parts.merges) {
    const auto id = [&](const std::string& token) {
      if (const auto found = id_of(token)) return *found;
      refuse(parts.merges_name, "merge " + std::to_string(number) + " needs the token " +
                                    shown(token) +
                                    ", which the vocabulary lacks; the files do not belong "
                                    "together");
    };
    merges_.add({id(left), id(right), id(left + right)});
    ++number;
  }
}

std::optional<int32_t> ByteLevelBpe::State::id_of(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void ByteLevelBpe::State::append_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (!whole_words_.empty()) {
    const auto found = whole_words_.find(std::string(word));
    if (found != whole_words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  merges_.append_ids(word, ids);
}

void ByteLevelBpe::State::append_words(std::string_view text, Memory& memory,
                                       std::vector<int32_t>& ids) const {
  constexpr size_t kLongestKept = 64;
  std::string key;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, words_.first_word(text));
    text.remove_prefix(word.size());
    if (word.size() > kLongestKept) {
      append_word(word, ids);
      continue;
    }
    key.assign(word);
    if (const auto* known = memory.find(key)) {
      ids.insert(ids.end(), known->begin(), known->end());
      continue;
    }
    const size_t first = ids.size();
    append_word(word, ids);
    memory.put(key, {ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end()});
  }
}

void ByteLevelBpe::State::append_ids(std::string_view text, Memory& memory,
                                     std::vector<int32_t>& ids) const {
  if (malformed_utf8(text)) {
    std::string repaired;
    while (!text.empty()) {
      const Utf8Character character = utf8_character(text);
      append_utf8(repaired, character.code);
      text.remove_prefix(character.length);
    }
    return append_ids(repaired, memory, ids);
  }
  const auto token = [&](int32_t id) { ids.push_back(id); };
  const auto words = [&](std::string_view part) {
    if (options.add_prefix_space && !part.starts_with(' '))
      append_words(" " + std::string(part), memory, ids);
    else
      append_words(part, memory, ids);
  };
  raw_.split(text, [&](std::string_view part) { normalized_.split(part, words, token); }, token);
}

}  // namespace lockstep::inline v0::tokenizers
