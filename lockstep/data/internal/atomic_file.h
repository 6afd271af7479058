// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <span>

namespace lockstep::data {

// Writes `parts`, one after the other, to a file beside `path`, syncs it to the disk and renames it
// to `path`; an existing file is replaced. The mode is 0666 less the umask. Throws SystemError that
// names the path; then `path` is as it was and nothing is left beside it. Safe to call from several
// processes at once: one of the files wins.
void write_file_atomically(const std::filesystem::path& path,
                           std::initializer_list<std::span<const std::byte>> parts);

}  // namespace lockstep::data
