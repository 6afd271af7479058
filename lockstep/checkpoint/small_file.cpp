#include "lockstep/checkpoint/small_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

std::string read_small_file(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw CheckpointError("cannot read " + path.string() + ": " + error.message());
  if (size > kLargestSmallFile)
    throw CheckpointError(path.string() + ": larger than 64 MiB; this is no file of a checkpoint");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  const int why = errno;
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    throw CheckpointError("cannot read " + path.string() +
                          (why == 0 ? "" : std::string(": ") + std::strerror(why)));
  }
  return std::move(text).str();
}

}  // namespace lockstep::inline v0
