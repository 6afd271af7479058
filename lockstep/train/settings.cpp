#include "lockstep/train/settings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "lockstep/core/env.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/text.h"
#include "lockstep/core/utf8.h"

namespace lockstep::inline v0::settings {

using nlohmann::json;

namespace {
constexpr JsonRefusal kRefusal = refuse_as<InvalidArgument>;

std::string bound(double value) {
  return value == std::floor(value) ? std::to_string(static_cast<int64_t>(value))
                                    : json(value).dump();
}

void check_number(const std::string& name, double value, const std::string& text,
                  const Takes& takes) {
  const bool enough = takes.above ? value > takes.least : value >= takes.least;
  const bool fits = takes.below ? value < takes.most : value <= takes.most;
  if (enough && fits && std::isfinite(value)) return;
  if (std::isinf(takes.least)) refuse(name, text, "a number");
  const std::string least = bound(takes.least);
  if (!std::isinf(takes.most) && !takes.below)
    refuse(name, text, least + " to " + bound(takes.most));
  refuse(name, text,
         (takes.above ? "a number above " + least : least + " or more") +
             (std::isinf(takes.most) ? "" : ", and less than " + bound(takes.most)));
}
}  // namespace

void refuse(const std::string& field, const std::string& value, const std::string& takes) {
  throw InvalidArgument(field + " is " + (value.empty() ? "empty" : value) + "; give " + takes);
}

void parse_into(const std::string&, const std::string& text, std::string& value) {
  value = text;
}
void parse_into(const std::string& name, const std::string& text, bool& value) {
  const bool yes = text.empty() || text == "true" || text == "1" || text == "on" || text == "yes";
  const bool no = text == "false" || text == "0" || text == "off" || text == "no";
  if (!yes && !no) refuse(name, "'" + text + "'", "true or false");
  value = yes;
}
void parse_into(const std::string& name, const std::string& text, int64_t& value) {
  const auto parsed = parse_int(text);
  if (!parsed) refuse(name, "'" + text + "'", "a whole number");
  value = *parsed;
}
void parse_into(const std::string& name, const std::string& text, double& value) {
  const auto parsed = parse_double(text);
  if (!parsed) refuse(name, "'" + text + "'", "a number");
  value = *parsed;
}

void read_into(const json& json, const std::string& where, std::string& value) {
  value = text_of(json, where, kRefusal);
}
void read_into(const json& json, const std::string& where, bool& value) {
  value = flag_of(json, where, kRefusal);
}
void read_into(const json& json, const std::string& where, int64_t& value) {
  value = whole_of(json, where, kRefusal, std::numeric_limits<int64_t>::min(),
                   std::numeric_limits<int64_t>::max());
}
void read_into(const json& json, const std::string& where, double& value) {
  value = number_of(json, where, kRefusal, -JsonObject::kAnyNumber, JsonObject::kAnyNumber);
}

void check_value(const std::string& name, const std::string& value, const Takes& takes) {
  if (takes.choices.empty()) return;
  std::vector<std::string> choices;
  std::stringstream text{std::string(takes.choices)};
  for (std::string choice; std::getline(text, choice, '|');) choices.push_back(choice);
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  const std::string last = choices.back();
  choices.pop_back();
  refuse(name, "'" + value + "'", joined(choices) + " or " + last);
}

void check_value(const std::string& name, int64_t value, const Takes& takes) {
  check_number(name, static_cast<double>(value), std::to_string(value), takes);
}

void check_value(const std::string& name, double value, const Takes& takes) {
  check_number(name, value, std::isfinite(value) ? json(value).dump() : std::to_string(value),
               takes);
}

std::string hint_for(const std::string& name, const std::vector<std::string>& names,
                     const std::string& otherwise) {
  const std::string near = nearest_name(name, names);
  return near.empty() ? otherwise : "; did you mean '" + near + "'?";
}

void check_keys(const json& object, const std::string& source,
                const std::vector<std::string>& names, const std::string& otherwise) {
  std::vector<std::string> unknown;
  for (const auto& item : object.items())
    if (std::find(names.begin(), names.end(), item.key()) == names.end())
      unknown.push_back(item.key());
  if (unknown.empty()) return;
  const auto quoted = [](const std::string& key) { return "'" + printable(key, 80) + "'"; };
  if (unknown.size() == 1)
    throw InvalidArgument(source + ": unknown key " + quoted(unknown.front()) +
                          hint_for(unknown.front(), names, otherwise));
  std::vector<std::string> listed;
  for (const std::string& key : unknown) {
    const std::string near = nearest_name(key, names);
    listed.push_back(quoted(key) + (near.empty() ? "" : " (did you mean '" + near + "'?)"));
  }
  throw InvalidArgument(source + ": unknown keys " + joined(listed) + otherwise);
}

json parse_object(std::string_view text, const std::string& source) {
  json json = parse_json(text, source, kRefusal);
  const JsonObject object(json, source, kRefusal);
  return json;
}

}  // namespace lockstep::inline v0::settings
