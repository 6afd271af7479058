#include "lockstep/checkpoint/shown_text.h"

#include "lockstep/core/utf8.h"

namespace lockstep::inline v0 {

std::string shown(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string quoted(1, '\'');
  quoted += printable(text, kMost);
  quoted += '\'';
  return quoted;
}

}  // namespace lockstep::inline v0
