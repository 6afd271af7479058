#include "lockstep/train/settings.h"

#include <algorithm>

#include "lockstep/core/env.h"

namespace lockstep::settings {

using nlohmann::ordered_json;

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

void read_into(const ordered_json& json, const std::string& where, std::string& value) {
  if (!json.is_string()) refuse(where, json.dump(), "a string");
  value = json.get<std::string>();
}
void read_into(const ordered_json& json, const std::string& where, bool& value) {
  if (!json.is_boolean()) refuse(where, json.dump(), "true or false");
  value = json.get<bool>();
}
void read_into(const ordered_json& json, const std::string& where, int64_t& value) {
  const bool fits =
      json.is_number_integer() && !(json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX);
  if (!fits) refuse(where, json.dump(), "a whole number");
  value = json.get<int64_t>();
}
void read_into(const ordered_json& json, const std::string& where, double& value) {
  if (!json.is_number()) refuse(where, json.dump(), "a number");
  value = json.get<double>();
}

void at_least(const char* name, int64_t value, int64_t least) {
  if (value < least) refuse(name, std::to_string(value), std::to_string(least) + " or more");
}

void check_choice(const char* name, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i)
    text += (i == 0 ? "" : i + 1 < choices.size() ? ", " : " or ") + choices[i];
  refuse(name, "'" + value + "'", text);
}

ordered_json parse_object(std::string_view text, const std::string& source) {
  ordered_json json;
  try {
    json = ordered_json::parse(text);
  } catch (const ordered_json::parse_error& error) {
    throw InvalidArgument(source + ": is not JSON (at byte " + std::to_string(error.byte) + ")");
  } catch (const ordered_json::out_of_range& error) {
    throw InvalidArgument(source + ": the number " + quoted_part(error.what()) +
                          " is out of range; give one that a double holds");
  }
  if (!json.is_object()) throw InvalidArgument(source + ": is not a JSON object of settings");
  return json;
}

}  // namespace lockstep::settings
