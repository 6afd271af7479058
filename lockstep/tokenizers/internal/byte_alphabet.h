// GPT-2's printable characters for the 256 bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::inline v0::tokenizers {

class ByteAlphabet {
 public:
  // Printable bytes of Latin-1 map to themselves, the others to U+0100, U+0101, ... in order.
  ByteAlphabet();

  char32_t character(uint8_t byte) const { return characters_[byte]; }
  // The bytes that a token represents; nullopt if it has another character.
  std::optional<std::string> bytes_of(std::string_view token) const;

 private:
  static constexpr char32_t kEnd = 0x144;  // one past the last character

  std::array<char32_t, 256> characters_{};
  std::array<int16_t, kEnd> bytes_{};  // of a character; -1: none
};

}  // namespace lockstep::inline v0::tokenizers
