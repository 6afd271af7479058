#include "lockstep/parallel/zero/internal/json_section.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::zero::internal {

using nlohmann::json;

json parse_config(const std::string& text, const std::string& source) {
  return parse_json(text, source, refuse_as<InvalidArgument>, {.comments = true, .once = true});
}

const json* JsonSection::find(const std::string& key) {
  known_.push_back(key);
  return object_.find(key);
}

void JsonSection::refuse(const std::string& key, const std::string& takes) const {
  const json* value = object_.find(key);
  if (value != nullptr && *value == "auto") {
    object_.say(
        key,
        "is \"auto\", which Hugging Face's Trainer fills in, and Lockstep does not; give " + takes);
  }
  object_.refuse(key, takes);
}

JsonSection JsonSection::section(const std::string& key) {
  const json* value = find(key);
  if (value != nullptr && !value->is_object()) refuse(key, "a JSON object");
  return JsonSection(object_.object_or_empty(key));
}

bool JsonSection::flag(const std::string& key, bool fallback) {
  const json* value = find(key);
  if (value != nullptr && *value == "auto") refuse(key, "true or false");
  return object_.flag(key, fallback);
}

int64_t JsonSection::whole(const std::string& key, int64_t fallback, int64_t least) {
  const json* value = find(key);
  if (value != nullptr && *value == "auto")
    refuse(key, "a whole number, " + std::to_string(least) + " or more");
  return object_.whole_or(fallback, key, least);
}

double JsonSection::number(const std::string& key, double fallback, double least, double most,
                           const char* takes) {
  const json* value = find(key);
  if (value != nullptr && *value == "auto") refuse(key, takes);
  return object_.number_or(fallback, key, least, most, takes);
}

std::string JsonSection::text(const std::string& key, const std::string& fallback) {
  const json* value = find(key);
  if (value != nullptr && (!value->is_string() || *value == "auto")) refuse(key, "a name");
  return object_.text(key, fallback);
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
    object_.say(key, "is " + shown(*value) + ", which is not here; " +
                         (instead.empty() ? "leave it out" : instead));
  }
}

void JsonSection::refuse_if_enabled(std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const json* value = find(key);
    if (value == nullptr || !value->is_object()) continue;
    if (value->value("enabled", json(false)) == true)
      object_.say(key, "is enabled, and is not here; leave it out");
  }
}

void JsonSection::finish() const {
  for (const auto& [key, value] : object_.members().items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string nearest = nearest_name(key, known_);
    throw InvalidArgument(path(shown(json(key))) + " is no setting" +
                          (nearest.empty()
                               ? "; leave it out, or see docs/zero.md for those there are"
                               : "; did you mean \"" + nearest + "\"?"));
  }
}

}  // namespace lockstep::inline v0::zero::internal
