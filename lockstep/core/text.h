// Text helpers for messages.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0 {

// The items (strings or whole numbers), separated by the separator: "0, 2, 3".
template <std::ranges::input_range Items>
std::string joined(const Items& items, std::string_view separator = ", ") {
  std::string text;
  bool first = true;
  for (const auto& item : items) {
    if (!first) text += separator;
    first = false;
    if constexpr (std::integral<std::ranges::range_value_t<Items>>)
      text += std::to_string(item);
    else
      text += item;
  }
  return text;
}

// The part of a parser's message between its first and its last single quote.
inline std::string quoted_part(std::string_view message) {
  const size_t begin = message.find('\''), end = message.rfind('\'');
  return end > begin && end != std::string_view::npos
             ? std::string(message.substr(begin + 1, end - begin - 1))
             : std::string();
}

// `text` as one word of a shell's command line, whatever it contains.
inline std::string shell_quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}
// The same for people to read: quoted only where necessary.
inline std::string shell_word(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:=,@%+").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  return shell_quoted(text);
}

// The number of insertions, deletions, changes and swaps of neighbours that turn one word into the
// other.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

// The one of `names` that is nearest to a misspelt `name`; nullopt where none is near: more than 3
// edits away and more than a third of the longer one. A name that begins with it counts as nearest.
template <std::ranges::input_range Names>
std::string nearest_name(std::string_view name, const Names& names) {
  constexpr size_t kLongest = 128;
  if (name.size() > kLongest) return {};
  std::string best;
  size_t least = kLongest;
  for (const std::string_view candidate : names) {
    const size_t longer = std::max(name.size(), candidate.size());
    const bool begun = name.size() > 3 && candidate.starts_with(name);
    const size_t edits = begun ? 1 : edit_distance(name, candidate);
    if (edits >= least || edits >= longer || edits > std::max<size_t>(3, longer / 3)) continue;
    least = edits;
    best = candidate;
  }
  return best;
}

}  // namespace lockstep::inline v0
