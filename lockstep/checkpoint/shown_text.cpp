#include "lockstep/checkpoint/shown_text.h"

namespace lockstep {

std::string shown(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kMost))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > kMost ? "...'" : "'");
}

}  // namespace lockstep
