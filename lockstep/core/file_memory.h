// Memory whose pages lie in a file: under pressure the system writes them to the disk instead of running
// out of memory.
#pragma once

#include <cstddef>
#include <filesystem>

namespace lockstep {

// Zeros at first. The file has no name, so nothing of it is left when this or the process is gone,
// however that ends.
class FileMemory {
 public:
  // The disk's space is taken at once, where its file system can do that. Throws SystemError that names the directory: it is not there, may
  // not be written, or has no room.
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

}  // namespace lockstep
