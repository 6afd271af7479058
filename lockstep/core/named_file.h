// A file that a user named, and that is read whole: settings, a secret, a password.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

class UniqueFd;

// Opens it to read. Throws InvalidArgument that names `path` unless it is an ordinary file that can be read: a
// FIFO or a device would be waited for without end.
UniqueFd open_named_file(const std::filesystem::path& path);

// All of it. Throws InvalidArgument, as above.
std::string read_named_file(const std::filesystem::path& path);

// How to name it to the user: relative to the working directory where that is shorter.
std::string path_from_here(const std::filesystem::path& path);

}  // namespace lockstep
