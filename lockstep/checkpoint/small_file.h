// Files that are read as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::inline v0 {

inline constexpr uintmax_t kLargestSmallFile = 64 << 20;

// The bytes of a checkpoint's JSON, vocabulary or similar file.
// Throws: CheckpointError that names the file, also if it is larger than 64 MiB or not a regular
// file.
std::string read_small_file(const std::filesystem::path& path);

}  // namespace lockstep::inline v0
