#include "lockstep/hooks/name_pattern.h"

#include <cstddef>

namespace lockstep::inline v0 {

bool is_named_or_below(std::string_view name, std::string_view pattern) {
  while (true) {
    const size_t wanted = pattern.find('.'), given = name.find('.');
    const std::string_view part = pattern.substr(0, wanted);
    if (part != "*" && part != name.substr(0, given)) return false;
    if (wanted == std::string_view::npos) return true;
    if (given == std::string_view::npos) return false;
    pattern.remove_prefix(wanted + 1);
    name.remove_prefix(given + 1);
  }
}

bool is_named(std::string_view name, std::string_view pattern) {
  const auto parts = [](std::string_view text) {
    size_t count = 1;
    for (const char c : text) count += c == '.' ? 1 : 0;
    return count;
  };
  return parts(name) == parts(pattern) && is_named_or_below(name, pattern);
}

}  // namespace lockstep::inline v0
