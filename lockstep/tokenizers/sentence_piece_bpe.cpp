#include "lockstep/tokenizers/sentence_piece_bpe.h"

#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/sentence_piece_state.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {
namespace {

// Consecutive bytes are characters if all of them together are valid.
void append_bytes(std::string& text, std::string& bytes) {
  if (malformed_utf8(bytes)) {
    for (size_t i = 0; i < bytes.size(); ++i) append_utf8(text, kReplacementCharacter);
  } else {
    text += bytes;
  }
  bytes.clear();
}

void append_with_spaces(std::string& text, std::string_view token) {
  constexpr std::string_view kSpaceMark = "\u2581";
  while (!token.empty()) {
    if (token.starts_with(kSpaceMark)) {
      text += ' ';
      token.remove_prefix(kSpaceMark.size());
    } else {
      text += token.front();
      token.remove_prefix(1);
    }
  }
}

}  // namespace

SentencePieceBpe::SentencePieceBpe(std::shared_ptr<const State> state) : state_(std::move(state)) {}

SentencePieceBpe SentencePieceBpe::parse_tokenizer_json(std::string_view json,
                                                        std::string_view name) {
  const nlohmann::json parsed = parse_file(json, name);
  return SentencePieceBpe(std::make_shared<const State>(root_of(parsed, name), name));
}

SentencePieceBpe SentencePieceBpe::from_tokenizer_json(const std::filesystem::path& file) {
  return parse_tokenizer_json(read_vocabulary_file(file), file.string());
}

bool SentencePieceBpe::is_one(std::string_view json, std::string_view name) {
  const nlohmann::json parsed = parse_file(json, name);
  const auto decoder = parsed.is_object() ? parsed.find("decoder") : parsed.end();
  return decoder != parsed.end() && decoder->is_object() &&
         decoder->value("type", nlohmann::json()) == "Sequence";
}

std::vector<int32_t> SentencePieceBpe::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  state_->append_ids(text, ids);
  return ids;
}

std::vector<std::string> SentencePieceBpe::tokenize(std::string_view text) const {
  std::vector<std::string> tokens;
  for (const int32_t id : encode(text)) tokens.push_back(token_of(id));
  return tokens;
}

std::string SentencePieceBpe::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text, bytes;
  for (const int32_t id : ids) {
    const std::string& token = token_of(id);
    if (skip_special_tokens && state_->special[static_cast<size_t>(id)]) continue;
    if (const auto byte = state_->bytes[static_cast<size_t>(id)]) {
      bytes += static_cast<char>(*byte);
      continue;
    }
    append_bytes(text, bytes);
    append_with_spaces(text, token);
  }
  append_bytes(text, bytes);
  size_t stripped = 0;
  while (stripped < static_cast<size_t>(state_->stripped) && stripped < text.size() &&
         text[stripped] == ' ')
    ++stripped;
  return text.substr(stripped);
}

int64_t SentencePieceBpe::vocabulary_size() const {
  return static_cast<int64_t>(state_->tokens.size());
}

std::optional<int32_t> SentencePieceBpe::id_of(std::string_view token) const {
  return state_->id_of(token);
}

const std::string& SentencePieceBpe::token_of(int32_t id) const {
  if (id < 0 || id >= vocabulary_size()) {
    throw InvalidArgument("the id " + std::to_string(id) + " is outside the vocabulary's 0.." +
                          std::to_string(vocabulary_size() - 1));
  }
  return state_->tokens[static_cast<size_t>(id)];
}

std::optional<int32_t> SentencePieceBpe::end_of_text_id() const {
  return state_->end_of_text_id;
}

const std::vector<int32_t>& SentencePieceBpe::begin_of_text() const {
  return state_->begin_of_text;
}

}  // namespace lockstep::inline v0::tokenizers
