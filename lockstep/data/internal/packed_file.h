// Data files, plain or gzip, as bytes in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::data {

inline constexpr const char* kFetchAgain = "; download or copy the file again";

// Throws DataError "<name>: <what>".
[[noreturn]] void refuse_file(std::string_view name, const std::string& what);

struct OpenFile {
  UniqueFd fd;
  uint64_t size = 0;
};

// `wanted` ends the error for a file that is not regular: "give an idx file". Throws DataError.
OpenFile open_file(const std::filesystem::path& path, const std::string& wanted);

// The first `count` bytes, or fewer where the file is shorter (it may shrink while it is read).
// Throws DataError.
std::vector<std::byte> read_bytes(const OpenFile& file, uint64_t count, std::string_view name);

bool is_gzip(std::span<const std::byte> bytes);

// The maximum number of bytes that `packed` compressed ones can expand to: deflate's ratio is at
// most 1032.
uint64_t gzip_ceiling(uint64_t packed);

using ByteSink = std::function<void(std::span<const std::byte>)>;

// Inflates one or more gzip members into `sink`. zlib checks each member's CRC and length. Throws
// DataError.
void gunzip(std::span<const std::byte> packed, std::string_view name, const ByteSink& sink);

// All bytes of a plain or gzip file, unpacked, a piece at a time. Throws as open_file(), gunzip()
// and `sink`.
void read_unpacked(const std::filesystem::path& path, const std::string& wanted,
                   const ByteSink& sink);

}  // namespace lockstep::inline v0::data
