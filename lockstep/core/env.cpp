#include "lockstep/core/env.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

EnvLookup process_env() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

std::optional<int64_t> parse_int(std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    return std::nullopt;
  }
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> env_int(const EnvLookup& env, std::string_view name, int64_t min,
                               int64_t max) {
  const auto text = env(name);
  if (!text) return std::nullopt;
  const auto value = parse_int(*text, min, max);
  if (!value) {
    std::string range = min == INT64_MIN ? "" : " of at least " + std::to_string(min);
    if (max != INT64_MAX) range = " from " + std::to_string(min) + " to " + std::to_string(max);
    throw InvalidArgument("environment variable " + std::string(name) + "=" + *text +
                          ": expected an integer" + range);
  }
  return value;
}

bool env_flag(const EnvLookup& env, std::string_view name, bool fallback) {
  const auto text = env(name);
  if (!text) return fallback;
  for (const char* yes : {"1", "true", "yes", "on", "TRUE", "YES", "ON"}) {
    if (*text == yes) return true;
  }
  for (const char* no : {"0", "false", "no", "off", "FALSE", "NO", "OFF"}) {
    if (*text == no) return false;
  }
  throw InvalidArgument("environment variable " + std::string(name) + "=" + *text +
                        ": expected 1 or 0 (true/false, yes/no, on/off)");
}

}  // namespace lockstep::inline v0
