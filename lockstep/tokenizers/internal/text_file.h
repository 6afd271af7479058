// Vocabulary files, and the errors about bad ones.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace lockstep::inline v0::tokenizers {

// Throws DataError "<name>: <what>".
[[noreturn]] void refuse(std::string_view name, const std::string& what);

// "line 3" of the byte at `position`.
std::string line_of(std::string_view text, size_t position);

// The whole file, without a byte order mark. Throws DataError: missing, not a regular file,
// unreadable, above 128 MiB.
std::string read_vocabulary_file(const std::filesystem::path& path);

// Throws DataError that says where `text` is not JSON.
nlohmann::json parse_file(std::string_view text, std::string_view name);

// A token in a message: in quotes, cut short, without control characters.
std::string shown(std::string_view token);

}  // namespace lockstep::inline v0::tokenizers
