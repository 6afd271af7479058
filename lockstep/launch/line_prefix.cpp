#include "lockstep/launch/line_prefix.h"

#include <optional>

namespace lockstep::inline v0::launch {
namespace {

bool in_a_name(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

std::optional<std::string> value_of(std::string_view name, const RankNames& names) {
  if (name == "role_name") return names.role;
  if (name == "rank") return std::to_string(names.rank);
  if (name == "local_rank") return std::to_string(names.local_rank);
  return std::nullopt;
}

// The name at the start of `text`, after its "$".
std::string_view name_at(std::string_view text) {
  size_t size = 0;
  while (size < text.size() && in_a_name(text[size])) ++size;
  return text.substr(0, size);
}

}  // namespace

std::string filled_template(std::string_view text, const RankNames& names) {
  std::string out;
  while (!text.empty()) {
    const size_t dollar = text.find('$');
    out += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar + 1);
    if (text.starts_with('$')) {
      out += '$';
      text.remove_prefix(1);
      continue;
    }
    const bool braces = text.starts_with('{');
    const std::string_view name = name_at(text.substr(braces ? 1 : 0));
    const bool closed = !braces || text.substr(1 + name.size()).starts_with('}');
    const auto value = closed ? value_of(name, names) : std::nullopt;
    if (!value) {
      out += '$';
      continue;
    }
    out += *value;
    text.remove_prefix(name.size() + (braces ? 2 : 0));
  }
  return out;
}

std::string line_prefix(const LaunchOptions& options, const RankNames& names, bool of_stderr) {
  if (!options.prefix_template.empty()) return filled_template(options.prefix_template, names);
  const std::string number = "[" + std::to_string(names.rank) + "]";
  if (options.prefix == LinePrefix::kRank) return number + ": ";
  if (options.prefix == LinePrefix::kRankAndStream)
    return number + (of_stderr ? "<stderr>: " : "<stdout>: ");
  return {};
}

}  // namespace lockstep::inline v0::launch
