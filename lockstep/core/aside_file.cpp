#include "lockstep/core/aside_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <set>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/file_lock.h"
#include "lockstep/core/parallel_blocks.h"

namespace lockstep::inline v0 {
namespace {

// Starts the disk while a large file is still being written, rather than at the end.
constexpr size_t kSend = 16 << 20;
constexpr int kSyncs = 16;  // simultaneous ones
constexpr std::string_view kSuffix = ".partial";

// Matches "NAME.123-0.partial", the file of a writer of NAME.
bool is_aside(std::string_view entry, std::string_view name) {
  if (entry.size() <= name.size() + kSuffix.size() || !entry.starts_with(name) ||
      !entry.ends_with(kSuffix) || entry[name.size()] != '.')
    return false;
  const auto digits = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  const std::string_view whose =
      entry.substr(name.size() + 1, entry.size() - name.size() - 1 - kSuffix.size());
  const size_t dash = whose.find('-');
  return dash != std::string_view::npos && digits(whose.substr(0, dash)) &&
         digits(whose.substr(dash + 1));
}

// A writer holds its file's lock until the file has its name, so a file whose lock is free was left
// behind.
void remove_if_abandoned(int directory, const char* name) noexcept {
  const UniqueFd file(
      ::openat(directory, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat opened{}, named{};
  if (!file || ::fstat(file.get(), &opened) != 0 || !S_ISREG(opened.st_mode) ||
      try_lock(file.get()) != FileLock::kHeld)
    return;
  // By now it may have got its final name, and another file may have taken this one.
  if (::fstatat(directory, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
      named.st_dev == opened.st_dev && named.st_ino == opened.st_ino)
    ::unlinkat(directory, name, 0);
}

void remove_abandoned(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
  if (!entries) return;
  const std::string name = path.filename();
  while (const dirent* entry = ::readdir(entries.get())) {
    if (is_aside(entry->d_name, name)) remove_if_abandoned(::dirfd(entries.get()), entry->d_name);
  }
}

// Whether any other way to write would fail as well.
bool is_of_the_disk(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO;
}

// Whether the new file `fd` is still this writer's: a process that removes abandoned files may have
// met it before its lock.
bool keeps(int fd) {
  struct stat info{};
  return try_lock(fd) != FileLock::kTaken && ::fstat(fd, &info) == 0 && info.st_nlink > 0;
}

}  // namespace

AsideFile::AsideFile(const std::filesystem::path& path) : path_(path.string()) {
  remove_abandoned(path);
  // The first free name, since this path may have another writer, on this host or another.
  int error = EEXIST;
  for (int n = 0; !fd_ && n < 1000; ++n) {
    aside_ = path_ + "." + std::to_string(::getpid()) + "-" + std::to_string(n);
    aside_ += kSuffix;
    fd_.reset(::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd_ && (error = errno) != EEXIST) break;
    if (fd_ && !keeps(fd_.get())) fd_.reset();
  }
  if (!fd_) throw system_error("cannot write " + path_, error);
}

AsideFile::~AsideFile() {
  if (fd_) ::unlink(aside_.c_str());
}

void AsideFile::allocate(size_t size) {
  const auto bytes = static_cast<off_t>(size);
  if (size == 0 || ::fallocate(fd_.get(), 0, 0, bytes) == 0) return;
  if (is_of_the_disk(errno)) throw system_error("cannot write " + path_, errno);
  if (::ftruncate(fd_.get(), bytes) != 0) throw system_error("cannot write " + path_, errno);
}

void AsideFile::write(const void* data, size_t size) {
  write_at(end_, data, size);
  end_ += size;
  unsent_ += size;
  if (unsent_ < kSend) return;
  // Offset 0 and length 0 mean the whole file. This only starts the work, so fsync reports errors.
  ::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  unsent_ = 0;
}

void AsideFile::write_direct(size_t offset, const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  size_t whole = size / kDirectAlignment * kDirectAlignment;
  while (whole > 0 && open_direct()) {
    const ssize_t written = ::pwrite(direct_.get(), next, whole, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    // The memory or the file offset does not satisfy this disk, the file system has no such writes,
    // which some report only at the first one, or it heeds the lock, which this descriptor does not
    // have (SMB).
    if (written < 0 && !is_of_the_disk(errno)) {
      refused_ = true;
      break;
    }
    if (written < 0) throw system_error("cannot write " + path_, errno);
    next += written;
    offset += static_cast<size_t>(written);
    size -= static_cast<size_t>(written);
    whole -= static_cast<size_t>(written);
  }
  if (size == 0) return;
  write_at(offset, next, size);
  ::sync_file_range(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(size),
                    SYNC_FILE_RANGE_WRITE);
}

// Whether there is a descriptor whose writes pass the page cache.
bool AsideFile::open_direct() {
  if (refused_) return false;
  std::call_once(opened_, [this] {
    direct_.reset(::open(aside_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
    if (!direct_) refused_ = true;
  });
  return !refused_;
}

void AsideFile::write_at(size_t offset, const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    // Linux writes at most 2 GiB per call and reports a short count.
    const ssize_t written = ::pwrite(fd_.get(), next, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error("cannot write " + path_, errno);
    next += written;
    offset += static_cast<size_t>(written);
    size -= static_cast<size_t>(written);
  }
}

void AsideFile::sync() {
  if (::fsync(fd_.get()) != 0) throw system_error("cannot sync " + path_, errno);
}

void AsideFile::commit_unsynced() {
  direct_.reset();
  // Some shared file systems show a file's bytes to others only after it is closed; the copy of the
  // descriptor keeps the lock until the file has its name. If there is no descriptor for a copy,
  // the file gets its name first, after its bytes are written.
  UniqueFd held(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!held) {
    sync();
    held = std::move(fd_);
  }
  fd_.reset();
  if (::rename(aside_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(aside_.c_str());
    throw system_error("cannot write " + path_, error);
  }
}

void AsideFile::commit() {
  sync();
  commit_unsynced();
  sync_directory(std::filesystem::path(path_).parent_path());
}

void commit_together(std::span<const std::unique_ptr<AsideFile>> files) {
  const auto count = static_cast<int64_t>(files.size());
  parallel_blocks(count, 1, kSyncs, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) files[static_cast<size_t>(i)]->sync();
  });
  std::set<std::filesystem::path> directories;
  for (const auto& file : files) {
    file->commit_unsynced();
    directories.insert(std::filesystem::path(file->path_).parent_path());
  }
  for (const auto& directory : directories) sync_directory(directory);
}

void write_file_aside(const std::filesystem::path& path, std::string_view text) {
  AsideFile file(path);
  file.write(text);
  file.commit();
}

void sync_directory(const std::filesystem::path& directory) noexcept {
  const UniqueFd fd(
      ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

}  // namespace lockstep::inline v0
