#include "lockstep/tokenizers/byte_level_bpe.h"

#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/parallel_blocks.h"
#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/bpe_state.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {

namespace fs = std::filesystem;

ByteLevelBpe::ByteLevelBpe(std::shared_ptr<const State> state) : state_(std::move(state)) {}

ByteLevelBpe ByteLevelBpe::parse_files(std::string_view vocabulary, std::string_view merges,
                                       const ByteLevelBpeOptions& options,
                                       std::string_view vocabulary_name,
                                       std::string_view merges_name) {
  return ByteLevelBpe(std::make_shared<const State>(
      bpe_parts_of_files(vocabulary, merges, options, vocabulary_name, merges_name)));
}

ByteLevelBpe ByteLevelBpe::from_files(const fs::path& vocabulary, const fs::path& merges,
                                      const ByteLevelBpeOptions& options) {
  return parse_files(read_vocabulary_file(vocabulary), read_vocabulary_file(merges), options,
                     vocabulary.string(), merges.string());
}

ByteLevelBpe ByteLevelBpe::parse_tokenizer_json(std::string_view json, std::string_view name) {
  return ByteLevelBpe(std::make_shared<const State>(bpe_parts_of_json(json, name)));
}

ByteLevelBpe ByteLevelBpe::from_tokenizer_json(const fs::path& file) {
  return parse_tokenizer_json(read_vocabulary_file(file), file.string());
}

ByteLevelBpe ByteLevelBpe::load(const fs::path& path) {
  if (!fs::is_directory(path)) return from_tokenizer_json(path);
  if (fs::exists(path / "tokenizer.json")) return from_tokenizer_json(path / "tokenizer.json");
  if (fs::exists(path / "vocab.json")) return from_files(path / "vocab.json", path / "merges.txt");
  refuse(path.string(),
         "has neither tokenizer.json nor vocab.json with merges.txt; give a tokenizer's directory");
}

std::vector<int32_t> ByteLevelBpe::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  State::Memory memory;
  state_->append_ids(text, memory, ids);
  return ids;
}

std::vector<std::vector<int32_t>> ByteLevelBpe::encode_batch(std::span<const std::string> texts,
                                                             int threads) const {
  constexpr int64_t kWorthAThread = 256;  // in texts
  std::vector<std::vector<int32_t>> ids(texts.size());
  parallel_blocks(static_cast<int64_t>(texts.size()), kWorthAThread, threads,
                  [&](int64_t begin, int64_t end) {
                    State::Memory memory;
                    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
                      state_->append_ids(texts[i], memory, ids[i]);
                  });
  return ids;
}

std::vector<std::string> ByteLevelBpe::tokenize(std::string_view text) const {
  std::vector<std::string> tokens;
  for (const int32_t id : encode(text)) tokens.push_back(token_of(id));
  return tokens;
}

std::string ByteLevelBpe::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes, text;
  for (const int32_t id : ids) {
    token_of(id);  // throws if it is outside the vocabulary
    if (skip_special_tokens && state_->special[static_cast<size_t>(id)]) continue;
    bytes += state_->bytes[static_cast<size_t>(id)];
  }
  if (!malformed_utf8(bytes)) return bytes;
  for (std::string_view rest = bytes; !rest.empty();) {
    const Utf8Character character = utf8_character(rest);
    append_utf8(text, character.code);
    rest.remove_prefix(character.length);
  }
  return text;
}

int64_t ByteLevelBpe::vocabulary_size() const {
  return static_cast<int64_t>(state_->tokens.size());
}

std::optional<int32_t> ByteLevelBpe::id_of(std::string_view token) const {
  return state_->id_of(token);
}

const std::string& ByteLevelBpe::token_of(int32_t id) const {
  if (id < 0 || id >= vocabulary_size()) {
    throw InvalidArgument("the id " + std::to_string(id) + " is outside the vocabulary's 0.." +
                          std::to_string(vocabulary_size() - 1));
  }
  return state_->tokens[static_cast<size_t>(id)];
}

const std::vector<int32_t>& ByteLevelBpe::begin_of_text() const {
  return state_->begin_of_text;
}

std::optional<int32_t> ByteLevelBpe::end_of_text_id() const {
  return state_->end_of_text_id;
}

}  // namespace lockstep::inline v0::tokenizers
