#include "lockstep/report/record_file.h"

#include <array>

namespace lockstep::inline v0::tensorboard {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCastagnoli = make_table();

template <typename Integer>
void append_little_endian(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i)
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes)
    crc = (crc >> 8) ^ kCastagnoli[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string framed_record(std::string_view record) {
  std::string out;
  out.reserve(record.size() + 16);
  append_little_endian(out, static_cast<uint64_t>(record.size()));
  append_little_endian(out, masked_crc32c(out));
  out += record;
  append_little_endian(out, masked_crc32c(record));
  return out;
}

}  // namespace lockstep::inline v0::tensorboard
