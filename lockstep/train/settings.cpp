#include "lockstep/train/settings.h"

#include <algorithm>
#include <limits>

#include "lockstep/core/env.h"
#include "lockstep/core/json_object.h"

namespace lockstep::settings {

using nlohmann::json;

namespace {
constexpr JsonRefusal kRefusal = refuse_as<InvalidArgument>;
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

json parse_object(std::string_view text, const std::string& source) {
  json json = parse_json(text, source, kRefusal);
  const JsonObject object(json, source, kRefusal);
  return json;
}

}  // namespace lockstep::settings
