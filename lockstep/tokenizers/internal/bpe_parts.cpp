// The files of a ByteLevelBpe.
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/bpe_state.h"
#include "lockstep/tokenizers/internal/json_reader.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::tokenizers {
namespace {

using nlohmann::json;
using Merges = std::vector<std::pair<std::string, std::string>>;

// "a b", or nothing where that is not what `text` is.
std::optional<std::pair<std::string, std::string>> merge_of(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string_view::npos)
    return std::nullopt;
  return std::pair(std::string(text.substr(0, space)), std::string(text.substr(space + 1)));
}

Merges merges_of_json(const JsonObject& model) {
  Merges merges;
  for (const json& entry : model.list("merges")) {
    std::optional<std::pair<std::string, std::string>> merge;
    if (entry.is_string()) merge = merge_of(entry.get_ref<const std::string&>());
    if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string())
      merge.emplace(entry[0].get<std::string>(), entry[1].get<std::string>());
    if (!merge) {
      model.say("merges[" + std::to_string(merges.size()) + "]",
                "is neither \"a b\" nor [\"a\", \"b\"]");
    }
    merges.push_back(*std::move(merge));
  }
  return merges;
}

void require_byte_level(const JsonObject& part) {
  require_type(part, "ByteLevel");
  if (!part.flag("use_regex", true)) part.say("use_regex", "is false, which is not supported");
}

}  // namespace

BpeParts bpe_parts_of_files(std::string_view vocabulary, std::string_view merges,
                            const ByteLevelBpeOptions& options, std::string_view vocabulary_name,
                            std::string_view merges_name) {
  BpeParts parts{.name = std::string(vocabulary_name),
                 .merges_name = std::string(merges_name),
                 .options = options};
  const json parsed = parse_file(vocabulary, vocabulary_name);
  parts.tokens = vocabulary_of(&parsed, vocabulary_name, "the vocabulary");
  parts.added.push_back({.content = options.end_of_text, .id = -1});

  if (const auto at = malformed_utf8(merges))
    refuse(merges_name, line_of(merges, *at) + " is not UTF-8; convert the file to UTF-8");
  int64_t number = 0;
  for (std::string_view rest = merges; !rest.empty();) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    if (line.empty() || line.starts_with("#version")) continue;
    auto merge = merge_of(line);
    if (!merge) {
      refuse(merges_name, "line " + std::to_string(number) + " is " + shown(line) +
                              "; a merge is two tokens with a space between them");
    }
    parts.merges.push_back(*std::move(merge));
  }
  return parts;
}

BpeParts bpe_parts_of_json(std::string_view text, std::string_view name) {
  const json parsed = parse_file(text, name);
  const JsonObject root = root_of(parsed, name);
  BpeParts parts{.name = std::string(name), .merges_name = std::string(name)};
  if (root.find("normalizer") != nullptr) root.say("normalizer", "is set; GPT-2 has none");
  const JsonObject pre_tokenizer = root.object("pre_tokenizer");
  require_byte_level(pre_tokenizer);
  parts.options.add_prefix_space = pre_tokenizer.flag("add_prefix_space", true);
  if (root.find("post_processor") != nullptr)
    require_type(root.object("post_processor"), "ByteLevel");
  require_type(root.object("decoder"), "ByteLevel");
  const JsonObject model = root.object("model");
  if (model.find("type") != nullptr) require_type(model, "BPE");
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                          "byte_fallback", "ignore_merges"})
    require_off(model, key);
  parts.tokens = vocabulary_of(model.find("vocab"), name, "model.vocab");
  parts.merges = merges_of_json(model);
  parts.added = added_tokens_of(root, parts.tokens);
  return parts;
}

}  // namespace lockstep::tokenizers
