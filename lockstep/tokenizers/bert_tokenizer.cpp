#include "lockstep/tokenizers/bert_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/parallel_blocks.h"
#include "lockstep/tokenizers/internal/bert_state.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {
namespace {

namespace fs = std::filesystem;

// [CLS] a [SEP] b [SEP], cut to fit.
Encoding assemble(const BertTokenizer& tokenizer, std::string_view text,
                  const std::string_view* pair, const EncodeOptions& options) {
  const size_t specials = options.special_tokens ? (pair != nullptr ? 3 : 2) : 0;
  const bool cut = options.truncation != Truncation::kNone;
  if (cut && (options.max_length < 1 || static_cast<size_t>(options.max_length) < specials)) {
    throw InvalidArgument("max_length is " + std::to_string(options.max_length) +
                          ", less than the special tokens need; use " +
                          std::to_string(specials + 1) + " or more");
  }
  std::vector<int32_t> ids, second;
  if (options.special_tokens) ids.push_back(tokenizer.cls_id());
  const size_t before = ids.size();
  tokenizer.append_ids(text, ids);
  if (pair != nullptr) tokenizer.append_ids(*pair, second);
  if (cut) {
    const size_t room = static_cast<size_t>(options.max_length) - specials;
    const auto [first_left, second_left] =
        truncated_lengths(ids.size() - before, second.size(), room, options.truncation);
    ids.resize(before + first_left);
    second.resize(second_left);
  }
  if (options.special_tokens) ids.push_back(tokenizer.sep_id());
  const size_t first_part = ids.size();
  ids.insert(ids.end(), second.begin(), second.end());
  if (options.special_tokens && pair != nullptr) ids.push_back(tokenizer.sep_id());

  Encoding encoding{.ids = std::move(ids)};
  encoding.type_ids.resize(encoding.ids.size(), 1);
  std::fill_n(encoding.type_ids.begin(), first_part, 0);
  encoding.attention_mask.resize(encoding.ids.size(), 1);
  return encoding;
}

}  // namespace

BertTokenizer::BertTokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

BertTokenizer BertTokenizer::from_tokens(std::vector<std::string> tokens,
                                         const BertTokenizerOptions& options,
                                         std::string_view name) {
  return BertTokenizer(
      std::make_shared<const State>(parts_of_tokens(std::move(tokens), options, name)));
}

BertTokenizer BertTokenizer::from_vocab(const fs::path& file, const BertTokenizerOptions& options) {
  return from_tokens(vocabulary_lines(read_vocabulary_file(file), file.string()), options,
                     file.string());
}

BertTokenizer BertTokenizer::parse_tokenizer_json(std::string_view json, std::string_view name) {
  return BertTokenizer(std::make_shared<const State>(parts_of_tokenizer_json(json, name)));
}

BertTokenizer BertTokenizer::from_tokenizer_json(const fs::path& file) {
  return parse_tokenizer_json(read_vocabulary_file(file), file.string());
}

BertTokenizer BertTokenizer::load(const fs::path& path, const BertTokenizerOptions& fallback) {
  if (!fs::is_directory(path)) {
    return path.extension() == ".json" ? from_tokenizer_json(path) : from_vocab(path, fallback);
  }
  const fs::path json = path / "tokenizer.json", config = path / "tokenizer_config.json",
                 vocabulary = path / "vocab.txt";
  const bool has_json = fs::exists(json), has_config = fs::exists(config);
  if (!has_json && !fs::exists(vocabulary)) {
    refuse(path.string(),
           "has neither vocab.txt nor tokenizer.json; give a tokenizer's directory or file");
  }
  BertParts parts =
      has_json ? parts_of_tokenizer_json(read_vocabulary_file(json), json.string()) : BertParts{};
  BertTokenizerOptions options = has_json ? parts.options : fallback;
  if (has_config) apply_tokenizer_config(read_vocabulary_file(config), config.string(), options);
  if (!has_json) return from_vocab(vocabulary, options);
  parts.options = options;
  return BertTokenizer(std::make_shared<const State>(std::move(parts)));
}

std::map<std::string, std::string> BertTokenizer::files() const {
  const BertTokenizerOptions& options = state_->options;
  nlohmann::ordered_json config = {
      {"tokenizer_class", "BertTokenizer"}, {"do_lower_case", options.lowercase},
      {"strip_accents", nullptr},           {"tokenize_chinese_chars", options.chinese_characters},
      {"unk_token", options.unk_token},     {"sep_token", options.sep_token},
      {"pad_token", options.pad_token},     {"cls_token", options.cls_token},
      {"mask_token", options.mask_token}};
  if (options.strip_accents) config["strip_accents"] = *options.strip_accents;
  std::map<std::string, std::string> files{{"tokenizer_config.json", config.dump(2) + "\n"}};
  if (!state_->json.empty()) {
    files["tokenizer.json"] = state_->json;
    return files;
  }
  std::string& lines = files["vocab.txt"];
  for (const std::string& token : state_->tokens) lines += token + "\n";
  return files;
}

void BertTokenizer::save(const fs::path& directory) const {
  for (const auto& [name, text] : files()) write_file_aside(directory / name, text);
}

Encoding BertTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return assemble(*this, text, nullptr, options);
}

Encoding BertTokenizer::encode_pair(std::string_view text, std::string_view pair,
                                    const EncodeOptions& options) const {
  return assemble(*this, text, &pair, options);
}

std::vector<Encoding> BertTokenizer::encode_batch(std::span<const std::string> texts,
                                                  const EncodeOptions& options,
                                                  const BatchOptions& batch,
                                                  std::span<const std::string> pairs) const {
  if (!pairs.empty() && pairs.size() != texts.size()) {
    throw InvalidArgument("encode_batch: " + std::to_string(texts.size()) + " texts and " +
                          std::to_string(pairs.size()) + " pairs; give as many of both");
  }
  constexpr int64_t kWorthAThread = 256;  // in texts
  std::vector<Encoding> encodings(texts.size());
  parallel_blocks(static_cast<int64_t>(texts.size()), kWorthAThread, batch.threads,
                  [&](int64_t begin, int64_t end) {
                    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
                      encodings[i] = pairs.empty() ? encode(texts[i], options)
                                                   : encode_pair(texts[i], pairs[i], options);
                    }
                  });
  pad(encodings, batch.padding, options.max_length, batch.pad_to_multiple, pad_id());
  return encodings;
}

void BertTokenizer::append_ids(std::string_view text, std::vector<int32_t>& ids) const {
  state_->append_ids(text, ids);
}

int64_t BertTokenizer::vocabulary_size() const {
  return static_cast<int64_t>(state_->tokens.size());
}

std::optional<int32_t> BertTokenizer::id_of(std::string_view token) const {
  return state_->id_of(token);
}

const std::string& BertTokenizer::token_of(int32_t id) const {
  if (id < 0 || id >= vocabulary_size()) {
    throw InvalidArgument("the id " + std::to_string(id) + " is outside the vocabulary's 0.." +
                          std::to_string(vocabulary_size() - 1));
  }
  return state_->tokens[static_cast<size_t>(id)];
}

int32_t BertTokenizer::unk_id() const {
  return state_->unk_id;
}
int32_t BertTokenizer::sep_id() const {
  return state_->sep_id;
}
int32_t BertTokenizer::pad_id() const {
  return state_->pad_id;
}
int32_t BertTokenizer::cls_id() const {
  return state_->cls_id;
}
std::optional<int32_t> BertTokenizer::mask_id() const {
  return state_->mask_id;
}
const BertTokenizerOptions& BertTokenizer::options() const {
  return state_->options;
}

}  // namespace lockstep::inline v0::tokenizers
