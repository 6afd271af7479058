// Files that appear whole or not at all: written beside their place, synced to the disk, then
// renamed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// What write_direct() wants of addresses and sizes: that of every disk and page.
inline constexpr size_t kDirectAlignment = 4096;

// A file under way. Without commit() its destructor removes what was written and leaves `path` as
// it was. Several writers of one path do not meet: the last to commit wins. What writers of the path have left
// that were killed is removed where the file system has locks, which tell it from what others are still writing.
// The mode is 0666 less the umask. Throws SystemError that names the path.
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
  // The same past the page cache, where the file system can: the disk takes the bytes from `data`, and no
  // processor copies them. `data` is at a multiple of kDirectAlignment, and `size` is one but for the file's
  // last piece. What does not fit, or is refused, is written as write() does.
  void write_direct(const void* data, size_t size);
  // Syncs, renames to `path` (an existing file is replaced) and syncs the directory.
  void commit();
  // Renames alone: for what need not outlive a power cut.
  void commit_unsynced();

 private:
  friend void commit_together(std::span<const std::unique_ptr<AsideFile>> files);

  void set_direct(bool direct);
  void sync();

  std::string path_;
  std::string aside_;
  UniqueFd fd_;
  size_t unsent_ = 0;    // bytes at the end that the disk was not yet asked to take
  bool direct_ = false;  // the file is open with O_DIRECT
  bool refused_ = false;
};

// commit() of files that are of use together: all are synced at once, which takes a disk hardly longer
// than one, before the first is renamed, and each directory once. Throws what commit() throws; some may then
// have their names.
void commit_together(std::span<const std::unique_ptr<AsideFile>> files);

// The whole of `text` as the file `path`.
void write_file_aside(const std::filesystem::path& path, std::string_view text);

// Makes what was created, renamed or removed in `directory` last beyond a power cut. Errors are
// ignored: some file systems cannot sync a directory, and the files themselves are synced.
void sync_directory(const std::filesystem::path& directory) noexcept;

}  // namespace lockstep
