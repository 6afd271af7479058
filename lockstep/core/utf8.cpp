#include "lockstep/core/utf8.h"

#include <cstring>

namespace lockstep::inline v0 {
namespace {

// The number of bytes that follow the lead byte, and the range of the first of them. Length 0: not
// a lead byte.
struct Utf8Lead {
  uint32_t following;
  uint8_t low, high;
};

Utf8Lead utf8_lead(uint8_t byte) {
  if (byte < 0xc2 || byte > 0xf4) return {0, 0, 0};
  if (byte < 0xe0) return {1, 0x80, 0xbf};
  if (byte < 0xf0) {
    return {2, static_cast<uint8_t>(byte == 0xe0 ? 0xa0 : 0x80),
            static_cast<uint8_t>(byte == 0xed ? 0x9f : 0xbf)};
  }
  return {3, static_cast<uint8_t>(byte == 0xf0 ? 0x90 : 0x80),
          static_cast<uint8_t>(byte == 0xf4 ? 0x8f : 0xbf)};
}

// The control characters of C0 and C1 (Unicode 15, section 23.1).
bool is_obeyed(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

Utf8Character utf8_character(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {first, 1, true};
  const Utf8Lead lead = utf8_lead(first);
  char32_t code = first & (0x3fU >> lead.following);
  for (uint32_t i = 1; i <= lead.following; ++i) {
    const auto byte = i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xbf;
    if (byte < low || byte > high) return {kReplacementCharacter, i, false};
    code = code << 6 | (byte & 0x3fU);
  }
  if (lead.following == 0) return {kReplacementCharacter, 1, false};
  return {code, lead.following + 1, true};
}

std::optional<size_t> malformed_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const Utf8Character character = utf8_character(text.substr(at));
    if (!character.valid) return at;
    at += character.length;
  }
  return std::nullopt;
}

std::string printable(std::string_view text, size_t most) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = utf8_character(text.substr(at));
    if (at + character.length > most) return shown + "...";
    if (!character.valid || is_obeyed(character.code))
      shown += '?';
    else
      shown += text.substr(at, character.length);
    at += character.length;
  }
  return shown;
}

size_t whole_characters(std::string_view text, size_t most) noexcept {
  if (text.size() <= most) return text.size();
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0U) == 0x80U) --most;
  return most;
}

void append_utf8(std::string& text, char32_t code) {
  const auto byte = [&](char32_t value) { text += static_cast<char>(value); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xc0 | code >> 6);
    byte(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    byte(0xe0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  } else {
    byte(0xf0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3f));
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  }
}

}  // namespace lockstep::inline v0
