#include "lockstep/tokenizers/internal/json_reader.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::tokenizers {

JsonObject::JsonObject(const nlohmann::json& value, std::string_view file, std::string place)
    : value_(value), file_(file), place_(std::move(place)) {
  if (!value.is_object()) {
    tokenizers::refuse(
        file, (place_.empty() ? "" : place_ + " ") + "is not a JSON object; give a tokenizer.json");
  }
}

std::string JsonObject::where(std::string_view key) const {
  return place_.empty() ? std::string(key) : place_ + "." + std::string(key);
}

void JsonObject::refuse(std::string_view key, const std::string& what) const {
  tokenizers::refuse(file_, where(key) + " " + what);
}

const nlohmann::json* JsonObject::find(std::string_view key) const {
  const auto found = value_.find(key);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

JsonObject JsonObject::object(std::string_view key) const {
  const nlohmann::json* found = find(key);
  if (found == nullptr) refuse(key, "is missing; the file is damaged or of another kind");
  return {*found, file_, where(key)};
}

std::string JsonObject::text(std::string_view key) const {
  const nlohmann::json* found = find(key);
  if (found == nullptr) refuse(key, "is missing; the file is damaged or of another kind");
  if (!found->is_string()) refuse(key, "is not a string");
  return found->get<std::string>();
}

std::string JsonObject::text(std::string_view key, std::string_view fallback) const {
  return find(key) == nullptr ? std::string(fallback) : text(key);
}

bool JsonObject::flag(std::string_view key, bool fallback) const {
  const nlohmann::json* found = find(key);
  if (found == nullptr) return fallback;
  if (!found->is_boolean()) refuse(key, "is not true or false");
  return found->get<bool>();
}

int64_t JsonObject::number(std::string_view key, int64_t fallback, int64_t low,
                           int64_t high) const {
  const nlohmann::json* found = find(key);
  if (found == nullptr) return fallback;
  // What does not fit an int64 is above every `high`.
  const bool fits = found->is_number_integer() &&
                    !(found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX);
  if (!fits || found->get<int64_t>() < low || found->get<int64_t>() > high) {
    refuse(key,
           "is not a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return found->get<int64_t>();
}

void JsonObject::require_type(std::string_view type) const {
  const std::string found = text("type");
  if (found == type) return;
  refuse("type", "is " + shown(found) + "; only " + std::string(type) + " is supported here");
}

void JsonObject::require_off(std::string_view key) const {
  const nlohmann::json* found = find(key);
  if (found == nullptr || *found == false || *found == "" ||
      (found->is_number() && found->get<double>() == 0))
    return;
  refuse(key, "is set, which is not supported");
}

std::vector<std::string> vocabulary_of(const nlohmann::json& vocabulary, std::string_view file,
                                       std::string_view place) {
  const std::string where(place);
  if (!vocabulary.is_object() || vocabulary.empty())
    refuse(file, where + " is not an object of tokens and their ids");
  std::vector<std::string> tokens(vocabulary.size());
  std::vector<bool> taken(tokens.size());
  for (const auto& [token, id] : vocabulary.items()) {
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
  if (!list->is_array()) root.refuse("added_tokens", "is not a list");
  std::map<std::string, int64_t, std::less<>> ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<int64_t>(id));
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string place = "added_tokens[" + std::to_string(i) + "]";
    const JsonObject entry((*list)[i], root.file(), place);
    AddedToken token{.content = entry.text("content"),
                     .single_word = entry.flag("single_word", false),
                     .lstrip = entry.flag("lstrip", false),
                     .rstrip = entry.flag("rstrip", false),
                     .normalized = entry.flag("normalized", false),
                     .special = entry.flag("special", false)};
    const auto [known, is_new] = ids.emplace(token.content, static_cast<int64_t>(tokens.size()));
    const int64_t id = entry.number("id", known->second, 0, INT32_MAX);
    if (id != known->second) {
      entry.refuse("id", "is " + std::to_string(id) + ", but " + shown(token.content) + " is " +
                             std::to_string(known->second) + " in the vocabulary");
    }
    if (is_new) tokens.push_back(token.content);
    token.id = static_cast<int32_t>(id);
    added.push_back(std::move(token));
  }
  return added;
}

}  // namespace lockstep::tokenizers
