#include "lockstep/tokenizers/internal/json_reader.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {

JsonObject root_of(const nlohmann::json& value, std::string_view file) {
  return {value, std::string(file), refuse_as<DataError>};
}

void require_type(const JsonObject& part, std::string_view type) {
  if (part.text("type") != type)
    part.refuse("type", std::string(type) + ", the only one that is supported here");
}

void require_off(const JsonObject& part, std::string_view key) {
  const nlohmann::json* found = part.find(key);
  if (found == nullptr || *found == false ||
      (found->is_string() && found->get_ref<const std::string&>().empty()) ||
      (found->is_number() && found->get<double>() == 0))
    return;
  part.say(key, "is set, which is not supported");
}

std::vector<std::string> vocabulary_of(const nlohmann::json* vocabulary, std::string_view file,
                                       std::string_view place) {
  const std::string where(place);
  if (vocabulary == nullptr || !vocabulary->is_object() || vocabulary->empty())
    refuse(file, where + " is not an object of tokens and their ids");
  std::vector<std::string> tokens(vocabulary->size());
  std::vector<bool> taken(tokens.size());
  for (const auto& [token, id] : vocabulary->items()) {
    const bool number = id.is_number_unsigned();
    const auto value = number ? id.get<uint64_t>() : 0;
    if (!number || value >= tokens.size() || taken[value]) {
      refuse(file, where + " gives the token " + shown(token) + " the id " +
                       id.dump().substr(0, 40) + "; the ids of " + std::to_string(tokens.size()) +
                       " tokens are 0 to " + std::to_string(tokens.size() - 1) + ", each once");
    }
    taken[value] = true;
    tokens[value] = token;
  }
  return tokens;
}

std::vector<AddedToken> added_tokens_of(const JsonObject& root, std::vector<std::string>& tokens) {
  std::vector<AddedToken> added;
  const nlohmann::json* list = root.find("added_tokens");
  if (list == nullptr) return added;
  if (!list->is_array()) root.refuse("added_tokens", "a list");
  std::map<std::string, int64_t, std::less<>> ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<int64_t>(id));
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string place = "added_tokens[" + std::to_string(i) + "]";
    const JsonObject entry((*list)[i], root.source(), refuse_as<DataError>, place);
    AddedToken token{.content = entry.text("content"),
                     .single_word = entry.flag("single_word", false),
                     .lstrip = entry.flag("lstrip", false),
                     .rstrip = entry.flag("rstrip", false),
                     .normalized = entry.flag("normalized", false),
                     .special = entry.flag("special", false)};
    const auto [known, is_new] = ids.emplace(token.content, static_cast<int64_t>(tokens.size()));
    const int64_t id = entry.whole_or(known->second, "id", 0, INT32_MAX);
    if (id != known->second) {
      entry.say("id", "is " + std::to_string(id) + ", but " + shown(token.content) + " is " +
                          std::to_string(known->second) + " in the vocabulary");
    }
    if (is_new) tokens.push_back(token.content);
    token.id = static_cast<int32_t>(id);
    added.push_back(std::move(token));
  }
  return added;
}

std::optional<Merge> merge_of(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string_view::npos)
    return std::nullopt;
  return Merge(std::string(text.substr(0, space)), std::string(text.substr(space + 1)));
}

std::vector<Merge> merges_of(const JsonObject& model) {
  std::vector<Merge> merges;
  for (const nlohmann::json& entry : model.list("merges")) {
    std::optional<Merge> merge;
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

std::vector<JsonObject> objects_of(const JsonObject& part, std::string_view key) {
  std::vector<JsonObject> objects;
  for (const nlohmann::json& entry : part.list(key))
    objects.emplace_back(entry, part.source(), refuse_as<DataError>,
                         part.place(std::string(key) + "[" + std::to_string(objects.size()) + "]"));
  return objects;
}

namespace {

std::vector<std::string> tokens_of_template(const JsonObject& part) {
  std::vector<std::string> tokens;
  bool text = false;
  for (const JsonObject& piece : objects_of(part, "single")) {
    if (piece.has("Sequence")) {
      if (text) part.say("single", "has the text twice");
      text = true;
      continue;
    }
    if (text) part.say("single", "puts tokens behind a text, which is not supported");
    tokens.push_back(piece.object("SpecialToken").text("id"));
  }
  return tokens;
}

}  // namespace

std::vector<std::string> tokens_before_texts(const JsonObject& root) {
  if (!root.has("post_processor")) return {};
  const JsonObject part = root.object("post_processor");
  std::vector<JsonObject> processors;
  if (part.text("type") == "Sequence")
    processors = objects_of(part, "processors");
  else
    processors.push_back(part);
  std::vector<std::string> tokens;
  for (const JsonObject& one : processors) {
    const std::string type = one.text("type");
    if (type == "ByteLevel") continue;
    if (type != "TemplateProcessing")
      one.refuse("type", "ByteLevel or TemplateProcessing, the only ones that are supported here");
    for (std::string& token : tokens_of_template(one)) tokens.push_back(std::move(token));
  }
  return tokens;
}

std::optional<std::string> end_token_of(const std::vector<AddedToken>& added) {
  for (const char* known : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    for (const AddedToken& token : added) {
      if (token.special && token.content == known) return known;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::inline v0::tokenizers
