// Reading Hugging Face's tokenizer.json: members with their places in messages.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/json_object.h"
#include "lockstep/tokenizers/internal/added_tokens.h"

namespace lockstep::tokenizers {

// The whole file as an object that throws DataError (core/json_object.h). Refers to the JSON.
JsonObject root_of(const nlohmann::json& value, std::string_view file);
// "type" must be this one.
void require_type(const JsonObject& part, std::string_view type);
// The member is missing, null, false, 0 or "": what would change results is off.
void require_off(const JsonObject& part, std::string_view key);

// An object of tokens and their ids 0..n-1, each once, as tokens by id.
std::vector<std::string> vocabulary_of(const nlohmann::json* vocabulary, std::string_view file,
                                       std::string_view place);

// "added_tokens". Tokens that the vocabulary lacks are appended to `tokens`, under the next ids.
std::vector<AddedToken> added_tokens_of(const JsonObject& root, std::vector<std::string>& tokens);

}  // namespace lockstep::tokenizers
