// Reads Hugging Face's tokenizer.json: members with their places in messages.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/json_object.h"
#include "lockstep/tokenizers/internal/added_tokens.h"

namespace lockstep::inline v0::tokenizers {

// The whole file as an object that throws DataError (core/json_object.h). Refers to the JSON.
JsonObject root_of(const nlohmann::json& value, std::string_view file);
// "type" must have this value.
void require_type(const JsonObject& part, std::string_view type);
// The member must be missing, null, false, 0 or "": a setting that would change results is off.
void require_off(const JsonObject& part, std::string_view key);

// An object of tokens and their ids 0..n-1, each once, as tokens by id.
std::vector<std::string> vocabulary_of(const nlohmann::json* vocabulary, std::string_view file,
                                       std::string_view place);

using Merge = std::pair<std::string, std::string>;
// "a b", or nullopt if `text` has another form.
std::optional<Merge> merge_of(std::string_view text);
// "merges" of a model, in their order.
std::vector<Merge> merges_of(const JsonObject& model);

// The objects of a list.
std::vector<JsonObject> objects_of(const JsonObject& part, std::string_view key);

// The tokens that "post_processor" puts before every text. Refuses one that puts tokens elsewhere.
std::vector<std::string> tokens_before_texts(const JsonObject& root);

// The special token that ends a text: <|endoftext|>, <|end_of_text|> or </s>.
std::optional<std::string> end_token_of(const std::vector<AddedToken>& added);

// Reads "added_tokens". Tokens that the vocabulary lacks are appended to `tokens`, with the next
// ids.
std::vector<AddedToken> added_tokens_of(const JsonObject& root, std::vector<std::string>& tokens);

}  // namespace lockstep::inline v0::tokenizers
