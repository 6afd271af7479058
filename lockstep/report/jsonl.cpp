#include "lockstep/report/jsonl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

JsonlWriter::JsonlWriter(const std::filesystem::path& path, Mode mode) : path_(path.string()) {
  const int truncate = mode == Mode::kReplace ? O_TRUNC : 0;
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | truncate, 0666));
  if (!fd_) throw system_error("cannot write " + path_, errno);
}

void JsonlWriter::write(const nlohmann::ordered_json& object) {
  // Text that is not UTF-8 is shown with replacement characters instead of being refused.
  const std::string line =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(fd_.get(), line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error("cannot write " + path_, errno);
    done += static_cast<size_t>(written);
  }
}

int64_t JsonlWriter::size() const {
  struct stat info{};
  if (::fstat(fd_.get(), &info) != 0) throw system_error("cannot read " + path_, errno);
  return info.st_size;
}

void JsonlWriter::truncate(int64_t size) {
  if (size < this->size() && ::ftruncate(fd_.get(), size) != 0)
    throw system_error("cannot shorten " + path_, errno);
}

}  // namespace lockstep::inline v0
