// UTF-8, as Unicode 15 section 3.9 defines it (no surrogates, nothing overlong).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::inline v0 {

inline constexpr char32_t kReplacementCharacter = 0xfffd;

struct Utf8Character {
  char32_t code = 0;
  uint32_t length = 0;  // bytes, at least 1
  bool valid = true;    // false: code is U+FFFD, and length that of the malformed sequence
};

// The character that starts at `text[0]`; `text` must not be empty. A malformed sequence has the
// length that Python's bytes.decode(errors="replace") uses: its longest part that could still have
// been a character.
Utf8Character utf8_character(std::string_view text);

// The position of the first malformed sequence.
std::optional<size_t> malformed_utf8(std::string_view text);

// Makes text of an untrusted file fit for a line of a message or a cell of a table: characters that
// a terminal would interpret (control characters, including line ends, and marks that change a
// line's direction) and malformed UTF-8 become '?', and after `most` bytes "..." follows.
std::string printable(std::string_view text, size_t most = std::string_view::npos);

// The length of the longest beginning of at most `most` bytes that ends between two characters.
size_t whole_characters(std::string_view text, size_t most) noexcept;

// Appends the character (at most U+10FFFF).
void append_utf8(std::string& text, char32_t code);

}  // namespace lockstep::inline v0
