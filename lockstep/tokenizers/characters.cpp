#include "lockstep/tokenizers/characters.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/tokenizers/internal/json_reader.h"
#include "lockstep/tokenizers/internal/text_file.h"

namespace lockstep::inline v0::tokenizers {
namespace {

constexpr const char* kFile = "characters.json";

std::string text_of_code(char32_t code) {
  std::string text;
  append_utf8(text, code);
  return text;
}

}  // namespace

Characters::Characters(std::vector<char32_t> codes) : codes_(std::move(codes)) {
  for (size_t id = 0; id < codes_.size(); ++id) ids_.emplace(codes_[id], static_cast<int32_t>(id));
}

Characters Characters::of(std::string_view text, std::string_view name) {
  if (const auto at = malformed_utf8(text))
    refuse(name, line_of(text, *at) + " is not UTF-8; convert the file to UTF-8");
  if (text.empty()) refuse(name, "is empty; give a text");
  std::set<char32_t> codes;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = utf8_character(text.substr(at));
    codes.insert(character.code);
    at += character.length;
  }
  return Characters({codes.begin(), codes.end()});
}

Characters Characters::load(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / kFile : path;
  return parse(read_vocabulary_file(file), file.string());
}

Characters Characters::parse(std::string_view json, std::string_view name) {
  const nlohmann::json parsed = parse_file(json, name);
  const JsonObject root = root_of(parsed, name);
  std::vector<char32_t> codes;
  std::set<char32_t> seen;
  for (const nlohmann::json& entry : root.list("characters")) {
    const std::string place = root.path("characters[" + std::to_string(codes.size()) + "]");
    const std::string text = lockstep::text_of(entry, place, refuse_as<DataError>);
    const Utf8Character character = text.empty() ? Utf8Character{} : utf8_character(text);
    if (text.empty() || character.length != text.size() || !seen.insert(character.code).second)
      throw DataError(place + " is " + shown(text) + "; give one character, each once");
    codes.push_back(character.code);
  }
  if (codes.empty()) root.refuse("characters", "a list of characters");
  return Characters(std::move(codes));
}

// Some of the characters that are allowed in its place.
std::string Characters::known() const {
  constexpr size_t kMost = 60;  // in bytes
  std::string some;
  for (const char32_t code : codes_)
    if (code > U' ') append_utf8(some, code);
  return "; it has " + std::to_string(codes_.size()) + ": " + printable(some, kMost);
}

std::vector<int32_t> Characters::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = utf8_character(text.substr(at));
    const auto found = ids_.find(character.code);
    if (!character.valid || found == ids_.end()) {
      throw DataError("the text's " + line_of(text, at) + " has " +
                      (character.valid ? shown(text_of_code(character.code)) +
                                             ", a character that the vocabulary lacks" + known()
                                       : std::string("bytes that are no UTF-8")));
    }
    ids.push_back(found->second);
    at += character.length;
  }
  return ids;
}

std::string Characters::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary_size())
      throw InvalidArgument("Characters: the id " + std::to_string(id) +
                            " is outside the vocabulary of " + std::to_string(vocabulary_size()));
    append_utf8(text, codes_[static_cast<size_t>(id)]);
  }
  return text;
}

std::map<std::string, std::string> Characters::files() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const char32_t code : codes_) list.push_back(text_of_code(code));
  return {{kFile, nlohmann::ordered_json{{"characters", list}}.dump() + "\n"}};
}

}  // namespace lockstep::inline v0::tokenizers
