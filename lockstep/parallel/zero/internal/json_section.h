// One object of a DeepSpeed-style JSON, read key by key. No libtorch. Not used directly: see
// zero_config.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/json_object.h"

namespace lockstep::inline v0::zero::internal {

// Parses the text. Throws InvalidArgument that begins with `source` if it is not JSON, or has a key
// twice.
nlohmann::json parse_config(const std::string& text, const std::string& source);

// Every key that is read becomes a known one; finish() then names an unknown one. All throw
// InvalidArgument (core/json_object.h).
class JsonSection {
 public:
  explicit JsonSection(JsonObject object) : object_(std::move(object)) {}

  const nlohmann::json* find(const std::string& key);
  JsonSection section(const std::string& key);  // an empty one where the key is absent
  bool flag(const std::string& key, bool fallback);
  int64_t whole(const std::string& key, int64_t fallback, int64_t least);
  // Within [least, most]; `takes` describes the range in words.
  double number(const std::string& key, double fallback, double least, double most,
                const char* takes);
  std::string text(const std::string& key, const std::string& fallback);

  // Keys that only tune DeepSpeed's implementation: their values are ignored.
  void read_over(std::initializer_list<const char*> keys);
  // Keys of unsupported features: refused unless their value is one of `harmless` (JSON texts).
  void refuse_unless(std::initializer_list<const char*> keys,
                     std::initializer_list<const char*> harmless, const std::string& instead = "");
  // Sections of unsupported features: refused if "enabled" is true.
  void refuse_if_enabled(std::initializer_list<const char*> keys);

  [[noreturn]] void refuse(const std::string& key, const std::string& takes) const;
  void finish() const;

  std::string path(const std::string& key) const { return object_.path(key); }

 private:
  JsonObject object_;
  std::vector<std::string> known_;
};

}  // namespace lockstep::inline v0::zero::internal
