#include "lockstep/tokenizers/internal/bert_parts.h"

#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/json_reader.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {

std::vector<std::string> vocabulary_lines(std::string_view text, std::string_view name) {
  if (const auto at = malformed_utf8(text))
    refuse(name, line_of(text, *at) + " is not UTF-8; give a vocab.txt in UTF-8");
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  while (lines.size() > 1 && lines.back().empty()) lines.pop_back();
  if (lines.empty()) refuse(name, "is empty; a vocab.txt has one token a line");
  return lines;
}

BertParts parts_of_tokens(std::vector<std::string> tokens, const BertTokenizerOptions& options,
                          std::string_view name) {
  BertParts parts{.name = std::string(name), .options = options, .tokens = std::move(tokens)};
  parts.model_tokens = parts.tokens.size();
  for (const std::string* special : {&options.unk_token, &options.sep_token, &options.pad_token,
                                     // Looked up when the parts are assembled.
                                     &options.cls_token, &options.mask_token})
    parts.added.push_back({.content = *special, .id = -1});
  return parts;
}

void apply_tokenizer_config(std::string_view json, std::string_view name,
                            BertTokenizerOptions& options) {
  const nlohmann::json parsed = parse_file(json, name);
  const JsonObject config = root_of(parsed, name);
  const auto flag = [&](const char* key, auto& value) {
    if (config.has(key)) value = config.flag(key, false);
  };
  flag("do_lower_case", options.lowercase);
  flag("strip_accents", options.strip_accents);
  flag("tokenize_chinese_chars", options.chinese_characters);
  const auto token = [&](const char* key, std::string& value) {
    const nlohmann::json* text = config.find(key);
    if (text == nullptr) return;
    value = text->is_object() ? config.object(key).text("content") : config.text(key);
  };
  token("unk_token", options.unk_token);
  token("sep_token", options.sep_token);
  token("pad_token", options.pad_token);
  token("cls_token", options.cls_token);
  token("mask_token", options.mask_token);
}

}  // namespace lockstep::inline v0::tokenizers
