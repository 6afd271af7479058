// What configurations of this room share: reading values from JSON and text, and refusing them in
// one way.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::settings {

// Throws InvalidArgument: "<field> is <value>; give <takes>".
[[noreturn]] void refuse(const std::string& field, const std::string& value,
                         const std::string& takes);

// What a setting may be, beside its type; a number is finite.
struct Takes {
  std::string_view choices = {};  // of a text: "none|bf16"; "": any
  double least = -kAny, most = kAny;
  bool above = false, below = false;  // the least, or the most, is none of them

  static constexpr double kAny = std::numeric_limits<double>::infinity();
};
constexpr Takes one_of(std::string_view choices) {
  return {.choices = choices};
}
constexpr Takes at_least(double least) {
  return {.least = least};
}
constexpr Takes between(double least, double most) {
  return {.least = least, .most = most};
}
constexpr Takes above(double least, double below = Takes::kAny) {
  return {.least = least, .most = below, .above = true, .below = true};
}
constexpr Takes from_below(double least, double below) {
  return {.least = least, .most = below, .below = true};
}

// Throw InvalidArgument that begins with `name`.
void check_value(const std::string& name, const std::string& value, const Takes& takes);
void check_value(const std::string& name, int64_t value, const Takes& takes);
void check_value(const std::string& name, double value, const Takes& takes);
inline void check_value(const std::string& /*name*/, bool /*value*/, const Takes& /*takes*/) {}
template <typename T>
void check_value(const std::string& name, const std::optional<T>& value, const Takes& takes) {
  if (value) check_value(name, *value, takes);
}

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

// Throws InvalidArgument that begins with `source` and names all keys of `object` that are not
// among `names`, with the nearest of these, or else `otherwise`.
void check_keys(const nlohmann::json& object, const std::string& source,
                const std::vector<std::string>& names, const std::string& otherwise);

// JSON of the members of `config`, in the order in which `visit(config, f)` shows them, as f(name,
// member).
template <typename Config, typename Visit>
std::string to_json(const Config& config, const Visit& visit) {
  nlohmann::ordered_json json;
  visit(config, [&](const char* name, const auto& value) {
    if constexpr (requires { value.has_value(); }) {
      json[name] = nullptr;
      if (value) json[name] = *value;
    } else {
      json[name] = value;
    }
  });
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Reads the members of `object` into those of `config` that `visit(config, f)` shows, as
// f(name, member). `otherwise`: the hint for an unknown key without a near one.
template <typename Config, typename Visit>
void read_members(const nlohmann::json& object, const std::string& source, Config& config,
                  const Visit& visit, const std::string& otherwise = "") {
  std::vector<std::string> names;
  visit(config, [&](const char* name, auto&) { names.emplace_back(name); });
  check_keys(object, source, names, otherwise);
  visit(config, [&](const char* name, auto& member) {
    const auto found = object.find(name);
    if (found != object.end()) read_into(*found, source + ": " + name, member);
  });
}

}  // namespace lockstep::settings
