#include "lockstep/tokenizers/internal/bert_parts.h"

#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::tokenizers {

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
  if (lines.empty()) refuse(name, "is empty; a vocab.txt has one token a line");
  return lines;
}

BertParts parts_of_tokens(std::vector<std::string> tokens, const BertTokenizerOptions& options,
                          std::string_view name) {
  BertParts parts{.name = std::string(name), .options = options, .tokens = std::move(tokens)};
  parts.model_tokens = parts.tokens.size();
  for (const std::string* special : {&options.unk_token, &options.sep_token, &options.pad_token,
                                     &options.cls_token, &options.mask_token})
    parts.added.push_back({.content = *special, .id = -1});  // looked up when put together
  return parts;
}

void apply_tokenizer_config(std::string_view json, std::string_view name,
                            BertTokenizerOptions& options) {
  const nlohmann::json config = parse_json(json, name);
  if (!config.is_object()) refuse(name, "is not a JSON object; give a tokenizer_config.json");
  const auto flag = [&](const char* key, auto& value) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) return;
    if (!found->is_boolean()) refuse(name, std::string(key) + " is not true or false");
    value = found->get<bool>();
  };
  flag("do_lower_case", options.lowercase);
  flag("strip_accents", options.strip_accents);
  flag("tokenize_chinese_chars", options.chinese_characters);
  const auto token = [&](const char* key, std::string& value) {
    auto found = config.find(key);
    if (found == config.end() || found->is_null()) return;
    const nlohmann::json* text = &*found;
    if (text->is_object() && text->contains("content")) text = &(*text)["content"];
    if (!text->is_string()) refuse(name, std::string(key) + " is not a token's text");
    value = text->get<std::string>();
  };
  token("unk_token", options.unk_token);
  token("sep_token", options.sep_token);
  token("pad_token", options.pad_token);
  token("cls_token", options.cls_token);
  token("mask_token", options.mask_token);
}

}  // namespace lockstep::tokenizers
