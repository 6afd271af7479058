// Words for messages.
#pragma once

#include <concepts>
#include <ranges>
#include <string>
#include <string_view>

namespace lockstep {

// The items (strings or whole numbers) with the separator between each two: "0, 2, 3".
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

}  // namespace lockstep
