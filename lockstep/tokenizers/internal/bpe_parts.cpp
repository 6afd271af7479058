// The files of a ByteLevelBpe.
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/bpe_state.h"
#include "lockstep/tokenizers/internal/json_reader.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {
namespace {

using nlohmann::json;

// Either ByteLevel, which splits words as GPT-2 does, or a Split by a known expression, followed by
// ByteLevel.
void read_pre_tokenizer(const JsonObject& part, BpeParts& parts) {
  if (part.text("type") != "Sequence") {
    require_type(part, "ByteLevel");
    if (!part.flag("use_regex", true)) part.say("use_regex", "is false, which is not supported");
    parts.options.add_prefix_space = part.flag("add_prefix_space", true);
    return;
  }
  const std::vector<JsonObject> both = objects_of(part, "pretokenizers");
  if (both.size() != 2) part.say("pretokenizers", "are not Split and ByteLevel");
  const JsonObject &split = both[0], &bytes = both[1];
  require_type(split, "Split");
  const std::string expression = split.object("pattern").text("Regex");
  const auto pattern = word_pattern(expression);
  if (!pattern)
    split.say("pattern.Regex", "is " + shown(expression) + ", which is not GPT-2's or Llama 3's");
  if (split.text("behavior") != "Isolated") split.refuse("behavior", "Isolated");
  if (split.flag("invert", false)) split.say("invert", "is true, which is not supported");
  require_type(bytes, "ByteLevel");
  if (bytes.flag("use_regex", true)) bytes.say("use_regex", "is true after a Split");
  if (bytes.flag("add_prefix_space", true))
    bytes.say("add_prefix_space", "is true after a Split, which is not supported");
  parts.pattern = *pattern;
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
  read_pre_tokenizer(root.object("pre_tokenizer"), parts);
  parts.begin_of_text = tokens_before_texts(root);
  require_type(root.object("decoder"), "ByteLevel");
  const JsonObject model = root.object("model");
  if (model.find("type") != nullptr) require_type(model, "BPE");
  for (const char* key :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"})
    require_off(model, key);
  parts.ignore_merges = model.flag("ignore_merges", false);
  parts.tokens = vocabulary_of(model.find("vocab"), name, "model.vocab");
  parts.vocabulary = parts.tokens.size();
  parts.merges = merges_of(model);
  parts.added = added_tokens_of(root, parts.tokens);
  parts.options.end_of_text = end_token_of(parts.added).value_or(parts.options.end_of_text);
  return parts;
}

}  // namespace lockstep::inline v0::tokenizers
