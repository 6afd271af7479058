// Reading Hugging Face's tokenizer.json: members with their places in messages.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tokenizers/internal/added_tokens.h"

namespace lockstep::tokenizers {

// An object of the file, with its place in it ("model"). All throw DataError that names file and
// place.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& value, std::string_view file, std::string place);

  std::string_view file() const { return file_; }
  std::string where(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, const std::string& what) const;

  // Null where missing or null.
  const nlohmann::json* find(std::string_view key) const;
  JsonObject object(std::string_view key) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  int64_t number(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  // "type" must be this one.
  void require_type(std::string_view type) const;
  // The member is missing, null, false, 0 or "": what would change results is off.
  void require_off(std::string_view key) const;

 private:
  const nlohmann::json& value_;
  std::string_view file_;
  std::string place_;
};

// An object of tokens and their ids 0..n-1, each once, as tokens by id.
std::vector<std::string> vocabulary_of(const nlohmann::json& vocabulary, std::string_view file,
                                       std::string_view place);

// "added_tokens". Tokens that the vocabulary lacks are appended to `tokens`, under the next ids.
std::vector<AddedToken> added_tokens_of(const JsonObject& root, std::vector<std::string>& tokens);

}  // namespace lockstep::tokenizers
