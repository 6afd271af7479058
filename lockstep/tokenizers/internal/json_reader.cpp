#include "lockstep/tokenizers/internal/json_reader.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::tokenizers {

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

}  // namespace lockstep::tokenizers
