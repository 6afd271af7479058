// Memory whose pages lie in a file: under pressure the system writes them to the disk instead of
// running out of memory.
#pragma once

#include <cstddef>
#include <filesystem>

namespace lockstep::inline v0 {

// Zeros at first. The file has no name, so nothing remains when this object or the process is gone,
// for any reason.
class FileMemory {
 public:
  // The disk space is allocated at once, where the file system can do that.
  // Throws: SystemError that names the directory if it does not exist, is not writable, or has no
  // space.
  FileMemory(const std::filesystem::path& directory, size_t bytes);
  ~FileMemory();
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

}  // namespace lockstep::inline v0
