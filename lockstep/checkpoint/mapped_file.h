// A file's bytes as memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace lockstep::inline v0 {

// Mapped for this process alone: pages are read when they are touched and shared with other readers
// of the file; writes stay in this process's memory and never reach the file. The file may be
// replaced by another while it is mapped (as AsideFile does), but truncating it in place ends the
// processes that read the removed part (SIGBUS).
class MappedFile {
 public:
  // Throws CheckpointError that names the path, also for what is not a regular file.
  static std::shared_ptr<MappedFile> open(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Reads all pages into memory at once, for callers that need all of them.
  void read_ahead() const;

  std::span<std::byte> bytes() const { return bytes_; }  // at the start of a page
  const std::string& name() const { return name_; }

 private:
  MappedFile(std::string name, std::span<std::byte> bytes)
      : name_(std::move(name)), bytes_(bytes) {}

  std::string name_;
  std::span<std::byte> bytes_;
};

}  // namespace lockstep::inline v0
