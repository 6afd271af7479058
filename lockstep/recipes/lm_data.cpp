#include "lockstep/recipes/lm_data.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/pretrained/language_model.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

using tokenizers::Characters;
using tokenizers::LmTokenizer;

LmTokenizer characters_of(const data::LanguageTexts& texts, const std::string& name) {
  std::string all;
  for (const auto* part : {&texts.train, &texts.dev})
    for (const std::string& text : *part) all += text;
  return LmTokenizer(Characters::of(all, name));
}

LmTokenizer find_lm_tokenizer(const LmInput& input, const data::LanguageTexts& texts) {
  const bool pretrained = fs::is_directory(input.model);
  if (input.tokenizer == kCharacterTokens || (input.tokenizer.empty() && !pretrained))
    return characters_of(texts, input.data);
  return LmTokenizer::load(input.tokenizer.empty() ? input.model : input.tokenizer);
}

// Rows end with a newline; where the tokenizer has a token for the end of a text, with that
// instead. Every text begins as the tokenizer has it.
std::vector<std::vector<int32_t>> tokens_of(const LmTokenizer& tokenizer,
                                            const std::vector<std::string>& texts, bool rows) {
  const auto end = tokenizer.end_of_text_id();
  const auto begin = tokenizer.begin_of_text();
  std::vector<std::vector<int32_t>> all;
  all.reserve(texts.size());
  for (const std::string& text : texts) {
    std::string_view words = text;
    if (rows && end && words.ends_with('\n')) words.remove_suffix(1);
    all.push_back(begin);
    const auto ids = tokenizer.encode(words);
    all.back().insert(all.back().end(), ids.begin(), ids.end());
    if (rows && end) all.back().push_back(*end);
  }
  return all;
}

std::vector<int64_t> ends_of(const LmTokenizer& tokenizer, bool rows) {
  if (const auto end = tokenizer.end_of_text_id()) return {*end};
  if (rows) return {tokenizer.encode("\n").back()};
  return {};
}

// A third of a line, up to twenty characters.
std::string opening_of_line(std::string_view line) {
  constexpr size_t kMost = 20;
  std::string opening;
  size_t count = 0;
  for (size_t at = 0; at < line.size() && count < kMost && 3 * at <= line.size(); ++count) {
    const size_t length = utf8_character(line.substr(at)).length;
    opening += line.substr(at, length);
    at += length;
  }
  return opening;
}

// A prompt that a person would give: of two characters or more, a letter among them, none that a
// terminal obeys; and no option's name.
bool is_prompt(std::string_view opening) {
  // Of bytes, for char is signed on x86 and unsigned on ARM.
  const auto letter = [](unsigned char c) { return std::isalnum(c) || c >= 0x80; };
  const auto control = [](unsigned char c) { return c < ' ' || c == 127; };
  return opening.size() >= 2 && opening.front() != '-' &&
         std::any_of(opening.begin(), opening.end(), letter) &&
         std::none_of(opening.begin(), opening.end(), control);
}

// The beginning of the first line that makes a prompt; where none does, of the first that is not
// empty.
std::string opening_of(const std::vector<std::string>& texts) {
  std::string first;
  for (const std::string& text : texts) {
    for (size_t at = 0; at < text.size();) {
      const size_t from = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
      const size_t end = std::min(text.find('\n', from), text.size());
      const std::string opening = opening_of_line(std::string_view(text).substr(from, end - from));
      if (is_prompt(opening)) return opening;
      if (first.empty()) first = opening;
      at = end + 1;
    }
  }
  return first;
}

}  // namespace

data::TokenWindows evaluation_windows(const LmTokenizer& tokenizer,
                                      const std::vector<std::string>& texts, bool rows,
                                      int64_t context) {
  return {tokens_of(tokenizer, texts, rows), context, data::WindowRest::kKept};
}

LmData load_lm_data(const LmInput& input) {
  const data::LanguageTexts texts = data::language_texts(input.data);
  LmData loaded{.train = {},
                .dev = {},
                .tokenizer = find_lm_tokenizer(input, texts),
                .end_ids = {},
                .opening = opening_of(texts.dev)};
  loaded.unread = texts.unread;
  loaded.end_ids = ends_of(loaded.tokenizer, texts.rows);
  const fs::path generation = fs::path(input.model) / kGenerationConfig;
  if (input.tokenizer.empty() && fs::is_regular_file(generation))
    loaded.generation_config = read_small_file(generation);
  data_errors_of(input.data, [&] {
    const auto tokens = tokens_of(loaded.tokenizer, texts.train, texts.rows);
    loaded.train = {tokens, input.context};
    loaded.dev = evaluation_windows(loaded.tokenizer, texts.dev, texts.rows, input.context);
    if (loaded.train.size() == 0) {
      size_t count = 0;
      for (const auto& text : tokens) count += text.size();
      throw DataError("has " + std::to_string(count) +
                      " tokens to train on, less than a window of " +
                      std::to_string(input.context) + "; give a smaller --context, or more text");
    }
    if (loaded.dev.targets() == 0)
      throw DataError("has nothing to predict in its dev texts; give longer ones");
  });
  return loaded;
}

TransformerLm make_lm(const LmInput& input, const LmData& data) {
  const int64_t vocabulary = data.tokenizer.vocabulary_size();
  if (fs::is_directory(input.model)) {
    TransformerLm model = lm_without_values(input.model);
    const LmConfig& config = model->config();
    if (input.context > config.max_position_embeddings)
      throw InvalidArgument("context is " + std::to_string(input.context) + "; " + input.model +
                            " has positions for " + std::to_string(config.max_position_embeddings) +
                            " tokens");
    if (vocabulary > config.vocab_size)
      throw InvalidArgument("the vocabulary has " + std::to_string(vocabulary) + " tokens; " +
                            input.model + " knows " + std::to_string(config.vocab_size));
    return model;
  }
  LmConfig config = lm_preset(input.model);
  config.vocab_size = vocabulary;
  config.max_position_embeddings = input.context;
  config.hidden_dropout = input.dropout;
  config.eos_token_ids = data.end_ids;
  return TransformerLm(config, LmOptions{.initial = InitialParameters::kNone});
}

std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> lm_values(
    const LmInput& input, const TransformerLm& model) {
  return fs::is_directory(input.model) ? lm_stored_parts(input.model, model) : model->drawn_parts();
}

CheckpointFiles lm_checkpoint_files(const TransformerLm& model, const LmData& data) {
  CheckpointFiles files{.config_json = to_json(model->config()), .others = data.tokenizer.files()};
  if (!data.generation_config.empty()) files.others[kGenerationConfig] = data.generation_config;
  return files;
}

}  // namespace lockstep::inline v0
