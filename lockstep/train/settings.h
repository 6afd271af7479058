// What configurations of this room share: reading values from JSON and text, and refusing them in
// one way.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::settings {

// Throws InvalidArgument: "<field> is <value>; give <takes>".
[[noreturn]] void refuse(const std::string& field, const std::string& value,
                         const std::string& takes);

void at_least(const char* name, int64_t value, int64_t least);
void check_choice(const char* name, const std::string& value,
                  const std::vector<std::string>& choices);

// Text as a command line gives it. Throw InvalidArgument that begins with `name`.
void parse_into(const std::string& name, const std::string& text, std::string& value);
void parse_into(const std::string& name, const std::string& text, bool& value);
void parse_into(const std::string& name, const std::string& text, int64_t& value);
void parse_into(const std::string& name, const std::string& text, double& value);

// JSON of the member's type. Throw InvalidArgument that begins with `where`.
void read_into(const nlohmann::json& json, const std::string& where, std::string& value);
void read_into(const nlohmann::json& json, const std::string& where, bool& value);
void read_into(const nlohmann::json& json, const std::string& where, int64_t& value);
void read_into(const nlohmann::json& json, const std::string& where, double& value);
template <typename T>
void read_into(const nlohmann::json& json, const std::string& where, std::optional<T>& value) {
  if (json.is_null())
    value.reset();
  else
    read_into(json, where, value.emplace());
}

// A JSON object. Throws InvalidArgument that begins with `source`.
nlohmann::json parse_object(std::string_view text, const std::string& source);

// Reads the members of `object` into those of `config` that `visit(config, f)` shows, as
// f(name, member). `otherwise`: the hint for an unknown key without a near one.
template <typename Config, typename Visit>
void read_members(const nlohmann::json& object, const std::string& source, Config& config,
                  const Visit& visit, const std::string& otherwise = "") {
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    bool found = false;
    std::vector<std::string> names;
    visit(config, [&](const char* name, auto& member) {
      names.emplace_back(name);
      if (key != name) return;
      found = true;
      read_into(item.value(), source + ": " + key, member);
    });
    if (found) continue;
    const std::string near = nearest_name(key, names);
    throw InvalidArgument(source + ": unknown key '" + key + "'" +
                          (near.empty() ? otherwise : "; did you mean '" + near + "'?"));
  }
}

}  // namespace lockstep::settings
