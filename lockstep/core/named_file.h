// A file that a user named and that is read whole: settings, a secret, a password.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::inline v0 {

class UniqueFd;

// Opens it for reading.
// Throws: InvalidArgument that names `path` unless it is a regular, readable file: a FIFO or a
// device could block for ever.
UniqueFd open_named_file(const std::filesystem::path& path);

// Reads all of it.
// Throws: InvalidArgument, as above.
std::string read_named_file(const std::filesystem::path& path);

// The path to show to the user: relative to the working directory where that is shorter.
std::string path_from_here(const std::filesystem::path& path);

}  // namespace lockstep::inline v0
