#include "lockstep/report/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <exception>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/report/record_file.h"
#include "lockstep/report/tensorboard_events.h"

namespace lockstep::inline v0 {
namespace {

constexpr size_t kFlushBytes = size_t{64} << 10;

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

tensorboard::When at_step(int64_t step) {
  return {wall_time(), step};
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

// Makes a new file even if another process makes one at the same moment.
UniqueFd create_event_file(const std::filesystem::path& directory, std::filesystem::path* path) {
  const std::string stem = "events.out.tfevents." + std::to_string(std::time(nullptr)) + "." +
                           host_name() + "." + std::to_string(::getpid()) + ".";
  for (int n = 0;; ++n) {
    *path = directory / (stem + std::to_string(n));
    UniqueFd fd(::open(path->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (fd) return fd;
    if (errno != EEXIST) throw system_error("cannot write " + path->string(), errno);
  }
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory,
                                     TensorBoardOptions options)
    : options_(options) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw system_error("cannot make " + directory.string(), error.value());
  fd_ = create_event_file(directory, &path_);
  add(tensorboard::version_event(wall_time()));
  if (options_.resumed_at) add(tensorboard::restart_event(at_step(*options_.resumed_at)));
  flush();
}

TensorBoardWriter::~TensorBoardWriter() {
  if (!fd_) return;
  try {
    flush();
  } catch (const std::exception&) {  // a full disk; flush() reports it
  }
}

void TensorBoardWriter::add(const std::string& event) {
  waiting_ += tensorboard::framed_record(event);
  const bool late = std::chrono::steady_clock::now() - written_ >= options_.flush_every;
  if (late || waiting_.size() >= kFlushBytes) flush();
}

void TensorBoardWriter::flush() {
  written_ = std::chrono::steady_clock::now();
  std::string records;
  records.swap(waiting_);  // dropped even if this fails
  const off_t start = ::lseek(fd_.get(), 0, SEEK_END);
  size_t done = 0;
  while (done < records.size()) {
    const ssize_t n = ::write(fd_.get(), records.data() + done, records.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int reason = errno;
      // Removes an incomplete record, so that later ones can be read.
      if (start >= 0 && ::ftruncate(fd_.get(), start) != 0) fd_.reset();
      throw system_error("cannot write " + path_.string(), reason);
    }
    done += static_cast<size_t>(n);
  }
}

void TensorBoardWriter::add_scalar(std::string_view tag, double value, int64_t step) {
  add(tensorboard::scalar_event(at_step(step), tag, static_cast<float>(value)));
}

void TensorBoardWriter::add_histogram(std::string_view tag, std::span<const float> values,
                                      int64_t step) {
  add_histogram(tag, std::vector<double>(values.begin(), values.end()), step);
}

void TensorBoardWriter::add_histogram(std::string_view tag, std::span<const double> values,
                                      int64_t step) {
  add(tensorboard::histogram_event(at_step(step), tag, values));
}

void TensorBoardWriter::add_text(std::string_view tag, std::string_view markdown, int64_t step) {
  add(tensorboard::text_event(at_step(step), tag, markdown));
}

void TensorBoardWriter::add_image(std::string_view tag, std::span<const uint8_t> pixels,
                                  int64_t height, int64_t width, int channels, int64_t step) {
  add(tensorboard::image_event(at_step(step), tag,
                               tensorboard::png_image(pixels, height, width, channels), height,
                               width, channels));
}

}  // namespace lockstep::inline v0
