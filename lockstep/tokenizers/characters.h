// Characters: a tokenizer whose tokens are the characters (Unicode's code points) of the text that
// it was made from. For small language models, and texts in a script of their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::tokenizers {

// Immutable.
// Thread-safety: all methods are const and may be called from any thread.
class LOCKSTEP_API Characters {
 public:
  // The characters of `text`, UTF-8, in the order of their code points.
  // Throws: DataError that begins with `name` where it is empty or malformed.
  static Characters of(std::string_view text, std::string_view name);
  // Reads characters.json, as files() returns it, or a directory with one.
  // Throws: DataError that names the file.
  static Characters load(const std::filesystem::path& path);
  static Characters parse(std::string_view json, std::string_view name);

  int64_t vocabulary_size() const { return static_cast<int64_t>(codes_.size()); }  // characters
  // Throws DataError that names the first character that is not in the vocabulary, or where the
  // text is not UTF-8.
  std::vector<int32_t> encode(std::string_view text) const;
  // Throws InvalidArgument for an id outside 0..vocabulary_size()-1.
  std::string decode(std::span<const int32_t> ids) const;

  // By name: {"characters.json": ...}.
  std::map<std::string, std::string> files() const;

 private:
  explicit Characters(std::vector<char32_t> codes);
  std::string known() const;

  std::vector<char32_t> codes_;  // by id
  std::unordered_map<char32_t, int32_t> ids_;
};

}  // namespace lockstep::inline v0::tokenizers
