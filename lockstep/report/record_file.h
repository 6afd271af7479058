// TFRecord framing: the record format of TensorBoard's event files and of TensorFlow's data sets.
// Pure.
//
// A record is its length (8 bytes, little-endian), a checksum of those 8 bytes, the bytes, and a
// checksum of the bytes; each checksum is a masked CRC-32C (4 bytes, little-endian).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::inline v0::tensorboard {

// CRC-32C (Castagnoli), as in RFC 3720, B.4: 0xe3069283 for "123456789".
uint32_t crc32c(std::string_view bytes);
// The checksum as the format stores it: rotated, and with a constant added, because a checksum of
// bytes that contain checksums is a poor one.
uint32_t masked_crc32c(std::string_view bytes);

// The record with its frame, ready to be appended to a file.
std::string framed_record(std::string_view record);

}  // namespace lockstep::inline v0::tensorboard
