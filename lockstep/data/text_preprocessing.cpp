// TextPreprocessing: the preprocessing of texts before they are tokenised.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/data/text_classification.h"

namespace lockstep::inline v0::data {
namespace {

// Equals Python 3's str.isspace().
bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

std::string_view stripped(std::string_view text) {
  size_t begin = text.size(), end = 0, at = 0;
  while (at < text.size()) {
    const Utf8Character character = utf8_character(text.substr(at));
    if (!is_python_space(character.code)) {
      begin = std::min(begin, at);
      end = at + character.length;
    }
    at += character.length;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

}  // namespace

std::string TextPreprocessing::apply(std::string_view text) const {
  std::string result(text);
  if (remove_spaces) std::erase(result, ' ');
  if (strip) result = std::string(stripped(result));
  return result;
}

nlohmann::ordered_json json_of(const TextPreprocessing& preprocessing) {
  return {{"remove_spaces", preprocessing.remove_spaces}, {"strip", preprocessing.strip}};
}

TextPreprocessing text_preprocessing(const nlohmann::ordered_json& json) {
  if (!json.is_object()) throw DataError("preprocessing: is not a JSON object");
  TextPreprocessing preprocessing;
  for (const auto& [key, value] : json.items()) {
    if (key != "remove_spaces" && key != "strip")
      throw DataError("preprocessing: unknown key " + key + "; known are remove_spaces and strip");
    if (!value.is_boolean()) throw DataError("preprocessing: " + key + " is not true or false");
    (key == "strip" ? preprocessing.strip : preprocessing.remove_spaces) = value.get<bool>();
  }
  return preprocessing;
}

}  // namespace lockstep::inline v0::data
