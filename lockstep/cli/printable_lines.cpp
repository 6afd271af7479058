#include "lockstep/cli/printable_lines.h"

#include <algorithm>

#include "lockstep/core/utf8.h"

namespace lockstep::inline v0 {

std::string printable_lines(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\t\r"), text.size());
    lines += printable(text.substr(0, end));
    if (end < text.size() && text[end] != '\r') lines += text[end];
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace lockstep::inline v0
