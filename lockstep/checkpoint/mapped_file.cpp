#include "lockstep/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "lockstep/core/errors.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

std::shared_ptr<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  const auto fail = [&name](const char* what) {
    throw CheckpointError(system_error(std::string(what) + name, errno).what());
  };
  // Opening a pipe without a writer would block.
  const UniqueFd fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) fail("cannot open ");
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) fail("cannot read ");
  if (!S_ISREG(info.st_mode))
    throw CheckpointError(name + ": not a file; give the path of a file that holds tensors");
  const auto size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
    if (data == MAP_FAILED) fail("cannot map ");
  }
  return std::shared_ptr<MappedFile>(
      new MappedFile(name, std::span(static_cast<std::byte*>(data), size)));
}

void MappedFile::read_ahead() const {
#ifdef MADV_POPULATE_READ  // Linux 5.14; it only saves time
  if (!bytes_.empty()) ::madvise(bytes_.data(), bytes_.size(), MADV_POPULATE_READ);
#endif
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace lockstep::inline v0
