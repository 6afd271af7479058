#include "lockstep/core/json_object.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/core/text.h"

namespace lockstep::inline v0 {

using nlohmann::json;

namespace {

[[noreturn]] void throw_line(JsonRefusal refusal, const std::string& line) {
  refusal(line);
  std::abort();  // unreachable: a refusal throws
}

[[noreturn]] void refuse_value(const json& value, const std::string& where, JsonRefusal refusal,
                               const std::string& takes) {
  throw_line(refusal, where + " is " + shown(value) + "; give " + takes);
}

std::string in_words(double value) {
  return json(value).dump();
}

std::string whole_in_words(int64_t least, int64_t most) {
  if (most >= JsonObject::kMostWhole && least <= -JsonObject::kMostWhole) return "a whole number";
  if (most >= JsonObject::kMostWhole)
    return "a whole number, " + std::to_string(least) + " or more";
  return "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
}

std::string number_in_words(double least, double most) {
  constexpr double kOpen = 1e15;
  if (most < kOpen) return "a number from " + in_words(least) + " to " + in_words(most);
  return least > -kOpen ? "a number, " + in_words(least) + " or more" : "a number";
}

const json& nothing() {
  static const json empty = json::object();
  return empty;
}

}  // namespace

json parse_json(std::string_view text, const std::string& source, JsonRefusal refusal,
                JsonSyntax syntax) {
  std::vector<std::set<std::string>> keys;  // the keys of the open objects
  const auto check = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw_line(refusal, source + ": " + shown(parsed) + " is given twice; keep one");
    return true;
  };
  try {
    return json::parse(text, syntax.once ? json::parser_callback_t(check) : nullptr,
                       /*allow_exceptions=*/true, syntax.comments);
  } catch (const json::parse_error& error) {
    const auto before = text.substr(0, std::min(text.size(), error.byte));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    throw_line(refusal, source + ": is not JSON (at byte " + std::to_string(error.byte) +
                            (line > 1 ? ", in line " + std::to_string(line) : "") + ")");
  } catch (const json::out_of_range& error) {
    throw_line(refusal, source + ": the number " + quoted_part(error.what()) +
                            " is out of range; give one that a double holds");
  }
}

// Names structures instead of printing them: they may have any length and depth, and dump() is
// recursive.
std::string shown(const json& value) {
  constexpr size_t kLongest = 60;
  if (value.is_structured() && !value.empty()) {
    return std::string(value.is_array() ? "a list" : "an object") + " of " +
           std::to_string(value.size());
  }
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

int64_t whole_of(const json& value, const std::string& where, JsonRefusal refusal, int64_t least,
                 int64_t most) {
  bool fits = false;
  int64_t whole = 0;
  if (value.is_number_unsigned()) {
    fits = value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (fits) whole = value.get<int64_t>();
  } else if (value.is_number_integer()) {
    fits = true;
    whole = value.get<int64_t>();
  } else if (value.is_number()) {
    const double number = value.get<double>();
    constexpr auto kMost = static_cast<double>(JsonObject::kMostWhole);
    fits = number >= -kMost && number <= kMost;
    if (fits) whole = static_cast<int64_t>(number);
    fits = fits && static_cast<double>(whole) == number;
  }
  if (!fits || whole < least || whole > most)
    refuse_value(value, where, refusal, whole_in_words(least, most));
  return whole;
}

double number_of(const json& value, const std::string& where, JsonRefusal refusal, double least,
                 double most, const std::string& takes) {
  const bool fits =
      value.is_number() && value.get<double>() >= least && value.get<double>() <= most;
  if (!fits)
    refuse_value(value, where, refusal, takes.empty() ? number_in_words(least, most) : takes);
  return value.get<double>();
}

std::string text_of(const json& value, const std::string& where, JsonRefusal refusal) {
  if (!value.is_string()) refuse_value(value, where, refusal, "a text");
  return value.get<std::string>();
}

bool flag_of(const json& value, const std::string& where, JsonRefusal refusal) {
  if (!value.is_boolean()) refuse_value(value, where, refusal, "true or false");
  return value.get<bool>();
}

JsonObject::JsonObject(const json& value, std::string source, JsonRefusal refusal,
                       std::string place)
    : value_(&value), source_(std::move(source)), refusal_(refusal), place_(std::move(place)) {
  if (!value.is_object())
    refuse_value(value, source_ + ":" + (place_.empty() ? "" : " " + place_), refusal_,
                 "a JSON object");
}

std::string JsonObject::place(std::string_view key) const {
  return place_.empty() ? std::string(key) : place_ + "." + std::string(key);
}
std::string JsonObject::path(std::string_view key) const {
  return source_ + ": " + place(key);
}

void JsonObject::say(std::string_view key, const std::string& what) const {
  throw_line(refusal_, path(key) + " " + what);
}
void JsonObject::refuse(std::string_view key, const std::string& takes) const {
  const json* value = find(key);
  say(key, (value == nullptr ? "is missing" : "is " + shown(*value)) + "; give " + takes);
}

const json* JsonObject::find(std::string_view key) const {
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}
const json& JsonObject::at(std::string_view key, const std::string& takes) const {
  const json* value = find(key);
  if (value == nullptr) refuse(key, takes);
  return *value;
}

JsonObject JsonObject::object(std::string_view key) const {
  return {at(key, "a JSON object"), source_, refusal_, place(key)};
}
JsonObject JsonObject::object_or_empty(std::string_view key) const {
  const json* value = find(key);
  return {value == nullptr ? nothing() : *value, source_, refusal_, place(key)};
}
const json& JsonObject::list(std::string_view key) const {
  const json& value = at(key, "a list");
  if (!value.is_array()) refuse(key, "a list");
  return value;
}

std::string JsonObject::text(std::string_view key) const {
  return text_of(at(key, "a text"), path(key), refusal_);
}
std::string JsonObject::text(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}
bool JsonObject::flag(std::string_view key, bool fallback) const {
  const json* value = find(key);
  return value == nullptr ? fallback : flag_of(*value, path(key), refusal_);
}
int64_t JsonObject::whole(std::string_view key, int64_t least, int64_t most) const {
  return whole_of(at(key, whole_in_words(least, most)), path(key), refusal_, least, most);
}
int64_t JsonObject::whole_or(int64_t fallback, std::string_view key, int64_t least,
                             int64_t most) const {
  return has(key) ? whole(key, least, most) : fallback;
}
double JsonObject::number(std::string_view key, double least, double most,
                          const std::string& takes) const {
  return number_of(at(key, takes.empty() ? number_in_words(least, most) : takes), path(key),
                   refusal_, least, most, takes);
}
double JsonObject::number_or(double fallback, std::string_view key, double least, double most,
                             const std::string& takes) const {
  return has(key) ? number(key, least, most, takes) : fallback;
}

}  // namespace lockstep::inline v0
