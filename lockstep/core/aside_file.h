// Files that appear whole or not at all: written beside their place, synced to the disk, then
// renamed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// A file under way. Without commit() its destructor removes what was written and leaves `path` as
// it was. Several writers of one path do not meet: the last to commit wins. The mode is 0666 less
// the umask. Throws SystemError that names the path.
class AsideFile {
 public:
  explicit AsideFile(const std::filesystem::path& path);
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;
  ~AsideFile();

  // Asks for room for `size` bytes at once, which makes writing a large file faster. Throws if the
  // disk lacks it; does nothing where the file system cannot.
  void reserve(size_t size);
  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Syncs, renames to `path` (an existing file is replaced) and syncs the directory.
  void commit();

 private:
  std::string path_;
  std::string aside_;
  UniqueFd fd_;
  size_t unsent_ = 0;  // bytes at the end that the disk was not yet asked to take
};

// The whole of `text` as the file `path`.
void write_file_aside(const std::filesystem::path& path, std::string_view text);

// Makes what was created, renamed or removed in `directory` last beyond a power cut. Errors are
// ignored: some file systems cannot sync a directory, and the files themselves are synced.
void sync_directory(const std::filesystem::path& directory) noexcept;

}  // namespace lockstep
