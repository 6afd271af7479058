#include "lockstep/tokenizers/internal/bert_state.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {
namespace {

// Collects a normalized text.
struct TextSink {
  std::string text;
  void bytes(const char* p, size_t count, size_t) { text.append(p, count); }
  void space() {}
  void alone(int32_t) {}
};

BertNormalization normalization_of(const BertTokenizerOptions& options) {
  return {.clean_text = options.clean_text,
          .chinese_characters = options.chinese_characters,
          .strip_accents = options.strip_accents.value_or(options.lowercase),
          .lowercase = options.lowercase};
}

}  // namespace

BertTokenizer::State::State(BertParts parts)
    : name(std::move(parts.name)),
      options(std::move(parts.options)),
      tokens(std::move(parts.tokens)),
      special(tokens.size()),
      continuation(std::move(parts.continuation)),
      cleanup(parts.cleanup),
      json(std::move(parts.json)),
      normalization_(normalization_of(options)) {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  if (bytes > PieceTrie::kMostBytes)
    refuse(name, "has tokens of more than 16 million bytes; give a smaller vocabulary");
  for (size_t i = 0; i < tokens.size(); ++i) {
    // The later id of a repeated token applies, as in transformers.
    (i < parts.model_tokens ? model_.trie : added_ids_).insert(tokens[i], static_cast<int32_t>(i));
  }
  unk_id = required(options.unk_token, "unknown");
  sep_id = required(options.sep_token, "separator");
  pad_id = required(options.pad_token, "padding");
  cls_id = required(options.cls_token, "classification");
  mask_id = id_of(options.mask_token);

  model_.continuation = model_.trie.walk(PieceTrie::kRoot, continuation);
  model_.unk_id = unk_id;
  model_.longest_word = parts.longest_word;
  rewrite_.emplace(normalization_);
  add_tokens(std::move(parts.added));
  std::vector<OneCharacterWord> words;
  for (size_t i = 0; i < parts.model_tokens; ++i) {
    if (tokens[i].empty() || tokens[i].size() > 4) continue;
    const Utf8Character character = utf8_character(tokens[i]);
    if (character.length == tokens[i].size())
      words.push_back({character.code, model_.trie.find(tokens[i])});
  }
  words_.emplace(normalization_, words, unk_id);
  if (!normalized_.empty()) normalized_words_.emplace(BertNormalization{}, words, unk_id);
}

int32_t BertTokenizer::State::required(const std::string& token, const char* role) const {
  if (const auto id = id_of(token)) return *id;
  refuse(name, "has no " + shown(token) + ", the " + role +
                   " token; give a BERT vocabulary, or the token's name in it");
}

void BertTokenizer::State::add_tokens(std::vector<AddedToken> added) {
  std::vector<AddedToken> raw, normalized;
  for (AddedToken& token : added) {
    if (token.id < 0) token.id = id_of(token.content).value_or(-1);
    if (token.id < 0) continue;  // a vocabulary need not have [MASK]
    if (token.special) special[static_cast<size_t>(token.id)] = true;
    if (token.normalized) {  // also the form in which the id is shown, as in Hugging Face's library
      token.content = normalize(token.content);
      tokens[static_cast<size_t>(token.id)] = token.content;
    }
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  raw_ = AddedTokenFinder(std::move(raw));
  normalized_ = AddedTokenFinder(std::move(normalized));
}

std::optional<int32_t> BertTokenizer::State::id_of(std::string_view token) const {
  int32_t id = model_.trie.find(token);
  if (id == PieceTrie::kNoId) id = added_ids_.find(token);
  return id == PieceTrie::kNoId ? std::nullopt : std::optional(id);
}

std::string BertTokenizer::State::normalize(std::string_view text) const {
  TextSink sink;
  rewrite_->walk(text, sink);
  return std::move(sink.text);
}

void BertTokenizer::State::append_ids(std::string_view text, std::vector<int32_t>& ids) const {
  const auto token = [&](int32_t id) { ids.push_back(id); };
  const auto words_of = [&](const BertCharacters& characters, std::string_view part) {
    WordPieceSink sink(model_, ids);
    characters.walk(part, sink);
    sink.space();
  };
  raw_.split(
      text,
      [&](std::string_view part) {
        if (normalized_.empty()) return words_of(*words_, part);
        normalized_.split(
            normalize(part), [&](std::string_view piece) { words_of(*normalized_words_, piece); },
            token);
      },
      token);
}

}  // namespace lockstep::inline v0::tokenizers
