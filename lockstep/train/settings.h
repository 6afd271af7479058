// The common part of the spellings of a TrainSpec (train_spec.h): their members are visited, read
// from JSON and text, checked, written and refused in one way.
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

namespace lockstep::inline v0::settings {

// Throws InvalidArgument: "<field> is <value>; give <takes>".
[[noreturn]] void refuse(const std::string& field, const std::string& value,
                         const std::string& takes);

// The values that a setting takes, beside its type. A number must be finite.
struct Takes {
  std::string_view choices = {};  // of a text: "none|bf16"; "": any
  double least = -kAny, most = kAny;
  bool above = false, below = false;  // excludes the least, or the most

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

// A member of a configuration. What shows the members of one is a visitor: visit(config, f) calls
// f(field, member) for each, in the order of JSON.
struct Field {
  std::string_view name;
  Takes takes = {};
  // The description of the member in --help.
  const char* group = "";     // the heading that it stands under
  std::string text = {};      // what it is
  std::string type = {};      // of a text: "DIR", "ddp|zero1"; numbers say themselves what they are
  std::string fallback = {};  // what is taken where a default of 0 or "" stands for something else
};

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

// For an unknown name: the nearest of `names`, or else `otherwise`.
std::string hint_for(const std::string& name, const std::vector<std::string>& names,
                     const std::string& otherwise);

// Throws InvalidArgument that begins with `source` and names all keys of `object` that are not
// among `names`, with hint_for() each.
void check_keys(const nlohmann::json& object, const std::string& source,
                const std::vector<std::string>& names, const std::string& otherwise);

template <typename Config, typename Visit>
std::vector<std::string> names_of(const Config& config, const Visit& visit) {
  std::vector<std::string> names;
  visit(config, [&](const Field& field, const auto&) { names.emplace_back(field.name); });
  return names;
}

// Throws InvalidArgument that names the first member with a value that its field does not take.
template <typename Config, typename Visit>
void check_members(const Config& config, const Visit& visit) {
  visit(config, [](const Field& field, const auto& value) {
    check_value(std::string(field.name), value, field.takes);
  });
}

template <typename Config, typename Visit>
std::string to_json(const Config& config, const Visit& visit) {
  nlohmann::ordered_json json;
  visit(config, [&](const Field& field, const auto& value) {
    auto& member = json[std::string(field.name)];
    if constexpr (requires { value.has_value(); }) {
      if (value) member = *value;
    } else {
      member = value;
    }
  });
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// `otherwise`: the hint for an unknown key without a near one.
template <typename Config, typename Visit>
void read_members(const nlohmann::json& object, const std::string& source, Config& config,
                  const Visit& visit, const std::string& otherwise = "") {
  check_keys(object, source, names_of(config, visit), otherwise);
  visit(config, [&](const Field& field, auto& member) {
    const std::string name(field.name);
    const auto found = object.find(name);
    if (found != object.end()) read_into(*found, source + ": " + name, member);
  });
}

// From text, as a command line gives it.
template <typename Config, typename Visit>
void set_member(Config& config, const std::string& name, const std::string& text,
                const Visit& visit, const std::string& otherwise) {
  bool found = false;
  visit(config, [&](const Field& field, auto& value) {
    if (name != field.name) return;
    found = true;
    parse_into(name, text, value);
  });
  if (!found)
    throw InvalidArgument("there is no setting '" + name + "'" +
                          hint_for(name, names_of(config, visit), otherwise));
}

}  // namespace lockstep::inline v0::settings
