// TFRecord framing: how TensorBoard's event files, and TensorFlow's data sets, put records into a
// file. Pure.
//
// A record is its length (8 bytes, little-endian), a checksum of those 8 bytes, the bytes, and a
// checksum of them; each checksum is a masked CRC-32C (4 bytes, little-endian).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::tensorboard {

// CRC-32C (Castagnoli), as in RFC 3720, B.4: of "123456789" it is 0xe3069283.
uint32_t crc32c(std::string_view bytes);
// What the format stores in place of the checksum itself: it rotates it and adds a constant, since
// the checksum of bytes that hold checksums is a poor one.
uint32_t masked_crc32c(std::string_view bytes);

// The record with its frame, ready to be appended to a file.
std::string framed_record(std::string_view record);

}  // namespace lockstep::tensorboard
