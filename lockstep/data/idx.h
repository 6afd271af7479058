// The idx file format of MNIST: a big-endian header (two zero bytes, an element type, the number of
// dims, each dim as 32 bits), then the values, last dim fastest. Lockstep reads and writes uint8
// with 1 to 4 dims.
//
// Source of the format: http://yann.lecun.com/exdb/mnist (Y. LeCun, C. Cortes, C. Burges).
//
// Reading is safe against hostile files: the header is trusted only as far as bytes follow it, and
// memory grows with the values that really exist. Every function may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// The contents of an idx file.
struct IdxArray {
  std::vector<int64_t> dims;    // 1 to 4, outermost first; a dim may be 0
  std::vector<uint8_t> values;  // product of the dims
};

// "60000x28x28".
LOCKSTEP_API std::string dims_text(std::span<const int64_t> dims);

// Parses the bytes of a plain or gzip idx file (distinguished by the gzip magic); `name` is its
// name in errors.
// Throws: DataError: not an idx file, another element type, too many dims, truncated, trailing
// bytes, corrupt gzip.
LOCKSTEP_API IdxArray parse_idx(std::span<const std::byte> bytes, std::string_view name);

// Reads a whole file.
// Throws: DataError as parse_idx(), or if the file is missing or unreadable.
LOCKSTEP_API IdxArray read_idx(const std::filesystem::path& path);

// Checks a file like read_idx() without keeping its values, and returns its dims. Reads only the
// header and the length of a plain file; inflates all of a gzip file, a piece at a time.
// Throws: as read_idx().
LOCKSTEP_API std::vector<int64_t> check_idx(const std::filesystem::path& path);

// Writes a plain idx file, whole or not at all.
// Throws: InvalidArgument if the dims do not fit the values or the format, SystemError if the file
// cannot be written; a previous file then stays in place.
LOCKSTEP_API void write_idx(const std::filesystem::path& path, std::span<const int64_t> dims,
                            std::span<const uint8_t> values);

}  // namespace lockstep::inline v0::data
