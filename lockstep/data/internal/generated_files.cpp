#include "lockstep/data/internal/generated_files.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::data {
namespace {

namespace fs = std::filesystem;

// Locks the directory against other processes until destroyed. File systems without flock(2) are
// used without a lock.
UniqueFd hold(const fs::path& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw system_error("cannot open the directory " + directory.string(), errno);
  const Deadline deadline = Deadline::seconds(60);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    if (deadline.expired()) {
      throw Timeout(directory.string() +
                    ": another process has been writing a data set there for 60 s; stop it or use "
                    "another directory");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fd;
}

std::string read_record(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void refuse_foreign_files(const fs::path& directory, const GeneratedFiles& files) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (!files.foreign(entry.path().filename().string())) continue;
    throw InvalidArgument(
        entry.path().string() +
        ": the directory already holds a data set that was not generated; use another directory");
  }
}

}  // namespace

bool generate_files(const fs::path& directory, const GeneratedFiles& files) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw system_error("cannot make the directory " + directory.string(), error.value());
  const UniqueFd held = hold(directory);

  const fs::path record = directory / files.record;
  const std::string wanted = files.heading + files.options, found = read_record(record);
  if (found == wanted && files.complete()) return false;
  if (!found.starts_with(files.ours)) refuse_foreign_files(directory, files);

  write_file_aside(record, files.heading + "incomplete\n");
  files.write();
  write_file_aside(record, wanted);
  return true;
}

void check_generated_count(const std::string& what, int64_t count) {
  if (count >= 1 && count <= kMostGenerated) return;
  throw InvalidArgument(what + ": " + std::to_string(count) + " samples; use 1 to " +
                        std::to_string(kMostGenerated));
}

}  // namespace lockstep::inline v0::data
