// generate_digits(): the files around render_digits().
#include <fcntl.h>
#include <sys/file.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/data/digits.h"
#include "lockstep/data/idx.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostSamples = 10'000'000;
constexpr const char* kRecord = "digits.txt";
// Raise the number whenever the same options come to give other bytes.
constexpr const char* kRecordStart = "Lockstep digits, version 1\n";

// Holds the directory against other processes until destroyed. File systems without flock(2) are
// used unheld.
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

std::string read_record(const fs::path& directory) {
  std::ifstream in(directory / kRecord, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_record(const fs::path& directory, const std::string& text) {
  write_file_aside(directory / kRecord, text);
}

void refuse_foreign_files(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    for (const char* stem : {"train-images", "train-labels", "t10k-images", "t10k-labels"}) {
      if (!name.starts_with(stem)) continue;
      throw InvalidArgument(
          entry.path().string() +
          ": the directory already holds a data set that was not generated; use another directory");
    }
  }
}

struct Part {
  std::string stem;
  DigitsSplit split;
  int64_t count;

  fs::path images(const fs::path& directory) const {
    return directory / (stem + "-images-idx3-ubyte");
  }
  fs::path labels(const fs::path& directory) const {
    return directory / (stem + "-labels-idx1-ubyte");
  }

  bool complete(const fs::path& directory) const {
    std::error_code none;
    return fs::file_size(images(directory), none) == static_cast<uintmax_t>(16 + count * 28 * 28) &&
           fs::file_size(labels(directory), none) == static_cast<uintmax_t>(8 + count);
  }
  void write(const fs::path& directory, int64_t seed) const {
    const Digits digits = render_digits(count, seed, split);
    write_idx(images(directory), std::array<int64_t, 3>{count, 28, 28}, digits.images);
    write_idx(labels(directory), std::array<int64_t, 1>{count}, digits.labels);
  }
};

}  // namespace

bool generate_digits(const fs::path& directory, const DigitsOptions& options) {
  for (const int64_t count : {options.train, options.test}) {
    if (count >= 1 && count <= kMostSamples) continue;
    throw InvalidArgument("generate_digits: " + std::to_string(count) + " samples; use 1 to " +
                          std::to_string(kMostSamples));
  }
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw system_error("cannot make the directory " + directory.string(), error.value());
  const UniqueFd held = hold(directory);

  const Part parts[] = {{"train", DigitsSplit::kTrain, options.train},
                        {"t10k", DigitsSplit::kTest, options.test}};
  const std::string wanted = kRecordStart + ("train " + std::to_string(options.train)) + "\ntest " +
                             std::to_string(options.test) + "\nseed " +
                             std::to_string(options.seed) + "\n";
  const std::string found = read_record(directory);
  if (found == wanted && parts[0].complete(directory) && parts[1].complete(directory)) return false;
  if (!found.starts_with("Lockstep digits")) refuse_foreign_files(directory);

  write_record(directory, std::string(kRecordStart) + "incomplete\n");
  for (const Part& part : parts) part.write(directory, options.seed);
  write_record(directory, wanted);
  return true;
}

}  // namespace lockstep::data
