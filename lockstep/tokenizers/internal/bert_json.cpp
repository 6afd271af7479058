// parts_of_tokenizer_json(): recognises a BERT tokenizer's tokenizer.json, and reads it.
#include <array>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/tokenizers/internal/bert_parts.h"
#include "lockstep/tokenizers/internal/json_reader.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {
namespace {

using nlohmann::json;

void read_normalizer(const JsonObject& normalizer, BertTokenizerOptions& options) {
  require_type(normalizer, "BertNormalizer");
  options.clean_text = normalizer.flag("clean_text", true);
  options.chinese_characters = normalizer.flag("handle_chinese_chars", true);
  options.lowercase = normalizer.flag("lowercase", true);
  options.strip_accents.reset();
  if (normalizer.find("strip_accents") != nullptr)
    options.strip_accents = normalizer.flag("strip_accents", false);
}

void read_model(const JsonObject& model, BertParts& parts) {
  if (model.find("type") != nullptr) require_type(model, "WordPiece");
  parts.options.unk_token = model.text("unk_token");
  parts.continuation = model.text("continuing_subword_prefix", "##");
  parts.longest_word =
      static_cast<size_t>(model.whole_or(100, "max_input_chars_per_word", 1, 1'000'000));
  parts.tokens = vocabulary_of(model.find("vocab"), parts.name, "model.vocab");
  parts.model_tokens = parts.tokens.size();
}

// One item of TemplateProcessing, such as "[CLS]:0" or "$A:0".
std::string template_item(const JsonObject& item) {
  const bool special = item.find("SpecialToken") != nullptr;
  const JsonObject inner = item.object(special ? "SpecialToken" : "Sequence");
  return (special ? "" : "$") + inner.text("id") + ":" +
         std::to_string(inner.whole_or(0, "type_id", 0, 1'000'000));
}

std::vector<std::string> template_items(const JsonObject& processor, const char* key) {
  std::vector<std::string> items;
  for (const json& item : processor.list(key)) {
    items.push_back(template_item(
        JsonObject(item, processor.source(), refuse_as<DataError>, processor.place(key))));
  }
  return items;
}

std::string without_type(const std::string& item) {
  return item.substr(0, item.rfind(':'));
}

void read_template(const JsonObject& processor, BertTokenizerOptions& options) {
  const auto single = template_items(processor, "single"), pair = template_items(processor, "pair");
  if (single.size() == 3) {
    options.cls_token = without_type(single[0]);
    options.sep_token = without_type(single[2]);
  }
  const std::string cls = options.cls_token + ":0", sep = options.sep_token + ":";
  if (single != std::vector<std::string>{cls, "$A:0", sep + "0"})
    processor.say("single", "is not BERT's [CLS] A [SEP]");
  if (pair != std::vector<std::string>{cls, "$A:0", sep + "0", "$B:1", sep + "1"})
    processor.say("pair", "is not BERT's [CLS] A [SEP] B [SEP] with the types 0 0 0 1 1");
}

void read_bert_processing(const JsonObject& processor, BertTokenizerOptions& options) {
  const auto token = [&](const char* key) {
    const json* pair = processor.find(key);
    if (pair == nullptr || !pair->is_array() || pair->empty() || !(*pair)[0].is_string())
      processor.refuse(key, "a list of a token and its id");
    return (*pair)[0].get<std::string>();
  };
  options.cls_token = token("cls");
  options.sep_token = token("sep");
}

void read_post_processor(const JsonObject& processor, BertTokenizerOptions& options) {
  const std::string type = processor.text("type");
  if (type == "TemplateProcessing") return read_template(processor, options);
  if (type == "BertProcessing") return read_bert_processing(processor, options);
  processor.refuse("type", "TemplateProcessing or BertProcessing, which are supported here");
}

}  // namespace

BertParts parts_of_tokenizer_json(std::string_view text, std::string_view name) {
  const json parsed = parse_file(text, name);
  const JsonObject root = root_of(parsed, name);
  BertParts parts{.name = std::string(name)};
  read_normalizer(root.object("normalizer"), parts.options);
  require_type(root.object("pre_tokenizer"), "BertPreTokenizer");
  read_model(root.object("model"), parts);
  read_post_processor(root.object("post_processor"), parts.options);
  if (root.find("decoder") != nullptr) {
    const JsonObject decoder = root.object("decoder");
    require_type(decoder, "WordPiece");
    if (decoder.text("prefix", "##") != parts.continuation)
      decoder.say("prefix", "is not the model's continuing_subword_prefix");
    parts.cleanup = decoder.flag("cleanup", true);
  }
  if (root.find("padding") != nullptr)
    parts.options.pad_token = root.object("padding").text("pad_token", "[PAD]");
  parts.added = added_tokens_of(root, parts.tokens);
  const BertTokenizerOptions& options = parts.options;
  bool lossless_as_vocabulary = true;
  for (const AddedToken& token : parts.added) {
    const bool usual =
        token.special && !token.normalized && !token.lstrip && !token.rstrip && !token.single_word;
    const bool named = token.content == options.unk_token || token.content == options.sep_token ||
                       token.content == options.pad_token || token.content == options.cls_token ||
                       token.content == options.mask_token;
    lossless_as_vocabulary = lossless_as_vocabulary && usual && named;
  }
  lossless_as_vocabulary = lossless_as_vocabulary && parts.added.size() >= 4 &&
                           parts.continuation == "##" && parts.longest_word == 100 &&
                           parts.cleanup && options.clean_text &&
                           parts.model_tokens == parts.tokens.size();
  if (!lossless_as_vocabulary) parts.json = text;
  return parts;
}

}  // namespace lockstep::inline v0::tokenizers
