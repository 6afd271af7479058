// TensorBoardWriter: event files that TensorBoard shows while they grow: `tensorboard --logdir
// DIR`. For one rank, as a rule rank 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

struct TensorBoardOptions {
  // Set in a run that goes on from a checkpoint of so many steps: TensorBoard then forgets what an
  // earlier file of the directory says about this step and later ones.
  std::optional<int64_t> resumed_at = std::nullopt;
  // An event is in the file once the next one comes so long after the last write, or 64 KiB have
  // come together, or at flush().
  std::chrono::milliseconds flush_every = std::chrono::seconds(2);
};

// Makes the directory and in it a file of its own,
// "events.out.tfevents.<seconds since 1970>.<host>.<process>.<n>", so that any number of runs and
// processes may write to one directory. Whole events are appended by one write(2) each time: a
// reader, and whoever kills the run, leaves or finds no half of one but after a power cut, and
// TensorBoard stops at such a half. One thread at a time. Throws SystemError that names the file.
class TensorBoardWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& directory,
                             TensorBoardOptions options = {});
  ~TensorBoardWriter();  // writes what is left; an error is lost
  TensorBoardWriter(TensorBoardWriter&& other) noexcept = default;
  TensorBoardWriter& operator=(TensorBoardWriter&&) = delete;

  // Tags with a common beginning up to "/" are shown together: "loss/train", "loss/test".
  void add_scalar(std::string_view tag, double value, int64_t step);
  // How values (weights, gradients) are spread. Infinite ones and NaN are left out.
  void add_histogram(std::string_view tag, std::span<const float> values, int64_t step);
  void add_histogram(std::string_view tag, std::span<const double> values, int64_t step);
  void add_text(std::string_view tag, std::string_view markdown, int64_t step);
  // 8 bits a channel, row by row, channels (1, 3: RGB, 4: RGBA) together. Throws InvalidArgument
  // unless there are height x width x channels bytes.
  void add_image(std::string_view tag, std::span<const uint8_t> pixels, int64_t height,
                 int64_t width, int channels, int64_t step);

  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  void add(const std::string& event);

  std::filesystem::path path_;
  UniqueFd fd_;
  TensorBoardOptions options_;
  std::string waiting_;  // whole records
  std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep
