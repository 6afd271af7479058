#include "lockstep/core/file_memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& directory, const std::string& what,
                         int errnum) {
  throw system_error("memory in " + directory.string() + ": " + what, errnum);
}

// A file without a name; some file systems support only removing the name afterwards.
UniqueFd nameless_file(const std::filesystem::path& directory) {
  UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = (directory / "lockstep-memory-XXXXXX").string();
  UniqueFd named(::mkostemp(name.data(), O_CLOEXEC));
  if (named.get() >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

FileMemory::FileMemory(const std::filesystem::path& directory, size_t bytes) : bytes_(bytes) {
  const UniqueFd file = nameless_file(directory);
  if (const int why = errno; !file) refuse(directory, "cannot make a file there", why);
  const size_t taken = std::max<size_t>(bytes, 1);
  // A page without space on the disk would later cause SIGBUS. (posix_fallocate() would write every
  // block if the file system does not support it.)
  const auto size = static_cast<off_t>(taken);
  int failed = ::fallocate(file.get(), 0, 0, size);
  if (failed != 0 && errno == EOPNOTSUPP) failed = ::ftruncate(file.get(), size);
  if (const int why = errno; failed != 0)
    refuse(directory, "no room for " + std::to_string(bytes) + " bytes", why);
  data_ = ::mmap(nullptr, taken, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (const int why = errno; data_ == MAP_FAILED) refuse(directory, "cannot map a file of it", why);
}

FileMemory::~FileMemory() {
  ::munmap(data_, std::max<size_t>(bytes_, 1));
}

}  // namespace lockstep::inline v0
