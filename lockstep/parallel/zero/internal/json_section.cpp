#include "lockstep/parallel/zero/internal/json_section.h"

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::zero::internal {

using nlohmann::json;

namespace {

const json& nothing() {
  static const json empty = json::object();
  return empty;
}

// A value in a message: short, whatever was given.
std::string shown(const json& value) {
  constexpr size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace

json parse_config(const std::string& text, const std::string& source) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw InvalidArgument(source + ": " + shown(parsed) + " is given twice; keep one");
    return true;
  };
  json result;
  try {
    result = json::parse(text, check, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const json::parse_error& error) {
    throw InvalidArgument(source + ": is not JSON (at byte " + std::to_string(error.byte) + ")");
  } catch (const json::out_of_range& error) {
    throw InvalidArgument(source + ": the number " + quoted_part(error.what()) +
                          " is out of range; give one that a double holds");
  }
  if (!result.is_object())
    throw InvalidArgument(source + ": is not a JSON object of settings, but " + shown(result));
  return result;
}

JsonSection::JsonSection(const json& object, std::string prefix)
    : object_(&object), prefix_(std::move(prefix)) {}

void JsonSection::refuse(const std::string& key, const json& value,
                         const std::string& takes) const {
  if (value == "auto") {
    throw InvalidArgument(path(key) +
                          " is \"auto\", which Hugging Face's Trainer fills in and nobody does "
                          "here; give " +
                          takes);
  }
  throw InvalidArgument(path(key) + " is " + shown(value) + "; give " + takes);
}

const json* JsonSection::find(const std::string& key) {
  known_.push_back(key);
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

JsonSection JsonSection::section(const std::string& key) {
  const json* value = find(key);
  if (value != nullptr && !value->is_object()) refuse(key, *value, "a JSON object");
  return {value == nullptr ? nothing() : *value, path(key) + "."};
}

bool JsonSection::flag(const std::string& key, bool fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, *value, "true or false");
  return value->get<bool>();
}

int64_t JsonSection::whole(const std::string& key, int64_t fallback, int64_t least) {
  constexpr double kMost = 9e15;  // whole numbers that a double has, too: 5e8 is one
  const json* value = find(key);
  if (value == nullptr) return fallback;
  const double number = value->is_number() ? value->get<double>() : -1;
  const bool fits = value->is_number() && number >= static_cast<double>(least) && number <= kMost &&
                    number == static_cast<double>(static_cast<int64_t>(number));
  if (!fits) refuse(key, *value, "a whole number, " + std::to_string(least) + " or more");
  return static_cast<int64_t>(number);
}

double JsonSection::number(const std::string& key, double fallback, double least, double most,
                           const char* takes) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  const double number = value->is_number() ? value->get<double>() : least - 1;
  if (!(number >= least && number <= most)) refuse(key, *value, takes);
  return number;
}

std::string JsonSection::text(const std::string& key, const std::string& fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string() || *value == "auto") refuse(key, *value, "a name");
  return value->get<std::string>();
}

void JsonSection::read_over(std::initializer_list<const char*> keys) {
  known_.insert(known_.end(), keys.begin(), keys.end());
}

void JsonSection::refuse_unless(std::initializer_list<const char*> keys,
                                std::initializer_list<const char*> harmless,
                                const std::string& instead) {
  for (const char* key : keys) {
    const json* value = find(key);
    if (value == nullptr) continue;
    const bool fine = std::any_of(harmless.begin(), harmless.end(),
                                  [&](const char* text) { return *value == json::parse(text); });
    if (fine) continue;
    throw InvalidArgument(path(key) + " is " + shown(*value) + ", which is not here; " +
                          (instead.empty() ? "leave it out" : instead));
  }
}

void JsonSection::refuse_if_enabled(std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const json* value = find(key);
    if (value == nullptr || !value->is_object()) continue;
    if (value->value("enabled", json(false)) == true)
      throw InvalidArgument(path(key) + " is enabled, and is not here; leave it out");
  }
}

void JsonSection::finish() const {
  for (const auto& [key, value] : object_->items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string nearest = nearest_name(key, known_);
    throw InvalidArgument(path(shown(json(key))) + " is no setting" +
                          (nearest.empty()
                               ? "; leave it out, or see docs/zero.md for those there are"
                               : "; did you mean \"" + nearest + "\"?"));
  }
}

}  // namespace lockstep::zero::internal
