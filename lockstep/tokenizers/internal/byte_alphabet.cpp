#include "lockstep/tokenizers/internal/byte_alphabet.h"

#include "lockstep/core/utf8.h"

namespace lockstep::inline v0::tokenizers {

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const char32_t character = printable ? static_cast<char32_t>(byte) : next++;
    characters_[static_cast<size_t>(byte)] = character;
    bytes_[character] = static_cast<int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view token) const {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Character character = utf8_character(token);
    if (character.code >= kEnd || bytes_[character.code] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_[character.code]);
    token.remove_prefix(character.length);
  }
  return bytes;
}

}  // namespace lockstep::inline v0::tokenizers
