// Files that appear whole or not at all: they are written beside their place, synced to the disk,
// then renamed.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

// The alignment of addresses, sizes and offsets for write_direct(), which suits every disk and page.
inline constexpr size_t kDirectAlignment = 4096;

// A file that is being written. Without commit() its destructor removes it and leaves `path`
// unchanged. Several writers of one path do not interfere: the last to commit wins. Leftovers of
// killed writers of the path are removed where the file system has locks, which distinguish them
// from files that others are still writing. The mode is 0666 less the umask. Throws SystemError
// that names the path.
class LOCKSTEP_API AsideFile {
 public:
  explicit AsideFile(const std::filesystem::path& path);
  AsideFile(const AsideFile&) = delete;
  AsideFile& operator=(const AsideFile&) = delete;
  ~AsideFile();

  // Makes the file `size` bytes long, zeros until they are written, and takes the room for them from the disk where that
  // can be done, which makes writing a large file faster. Throws if the disk lacks space.
  void allocate(size_t size);
  // Goes on where the last write() has ended; write_direct() does not count.
  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Writes at `offset` past the page cache, where the file system can: the disk takes the bytes from `data` without a
  // copy. All are aligned to kDirectAlignment, except for the size of the file's last piece. What is not aligned, or is
  // refused, goes through the page cache. Several threads may write pieces that do not overlap at the same time.
  void write_direct(size_t offset, const void* data, size_t size);
  // Syncs, renames to `path` (an existing file is replaced) and syncs the directory.
  void commit();
  // Only renames: for files that need not survive a power cut.
  void commit_unsynced();

 private:
  friend void commit_together(std::span<const std::unique_ptr<AsideFile>> files);

  bool open_direct();
  void write_at(size_t offset, const void* data, size_t size);
  void sync();

  std::string path_;
  std::string aside_;
  UniqueFd fd_;
  size_t end_ = 0;     // of what write() has written
  size_t unsent_ = 0;  // bytes before it that have not been flushed to the disk
  std::once_flag opened_;
  UniqueFd direct_;  // the file, open with O_DIRECT
  std::atomic<bool> refused_ = false;
};

// commit() of files that belong together: all are synced at once, which takes a disk hardly longer
// than one, before the first is renamed, and each directory once.
// Throws: as commit(); some files may then have their names.
LOCKSTEP_API void commit_together(std::span<const std::unique_ptr<AsideFile>> files);

// Writes `text` as the file `path`.
LOCKSTEP_API void write_file_aside(const std::filesystem::path& path, std::string_view text);

// Makes creations, renames and removals in `directory` durable. Errors are ignored: some file
// systems cannot sync a directory, and the files themselves are synced.
LOCKSTEP_API void sync_directory(const std::filesystem::path& directory) noexcept;

}  // namespace lockstep::inline v0
