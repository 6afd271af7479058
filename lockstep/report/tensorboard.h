// TensorBoardWriter: event files that TensorBoard shows while they grow: `tensorboard --logdir
// DIR`. Usually only rank 0 has one.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

// The options of a TensorBoardWriter.
struct LOCKSTEP_API TensorBoardOptions {
  // Set in a run that continues from a checkpoint after this many steps: TensorBoard then forgets
  // the events of earlier files in the directory at this step and later ones.
  std::optional<int64_t> resumed_at = std::nullopt;
  // Events are written to the file when the next event comes this long after the last write, when
  // 64 KiB have accumulated, or at flush().
  std::chrono::milliseconds flush_every = std::chrono::seconds(2);
};

// Makes the directory and in it a file of its own, "events.out.tfevents.<seconds since
// 1970>.<host>.<process>.<n>", so that any number of runs and processes may write to one directory.
// Each write(2) appends only whole events, because TensorBoard stops at an incomplete one: a reader
// never sees one, and a killed run leaves none; only a power cut can.
// Throws: SystemError that names the file.
// Thread-safety: one thread at a time.
class LOCKSTEP_API TensorBoardWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& directory,
                             TensorBoardOptions options = {});
  ~TensorBoardWriter();  // writes the remaining events; an error is ignored
  TensorBoardWriter(TensorBoardWriter&& other) noexcept = default;
  TensorBoardWriter& operator=(TensorBoardWriter&&) = delete;

  // Tags with a common beginning up to "/" are shown together: "loss/train", "loss/test".
  void add_scalar(std::string_view tag, double value, int64_t step);
  // The distribution of values (weights, gradients). Infinite values and NaN are left out.
  void add_histogram(std::string_view tag, std::span<const float> values, int64_t step);
  void add_histogram(std::string_view tag, std::span<const double> values, int64_t step);
  void add_text(std::string_view tag, std::string_view markdown, int64_t step);
  // 8 bits per channel, row by row, the channels (1; 3: RGB; 4: RGBA) of a pixel together.
  // Throws: InvalidArgument unless there are height x width x channels bytes.
  void add_image(std::string_view tag, std::span<const uint8_t> pixels, int64_t height,
                 int64_t width, int channels, int64_t step);

  // Writes what has accumulated.
  void flush();
  const std::filesystem::path& path() const { return path_; }  // of the file

 private:
  void add(const std::string& event);

  std::filesystem::path path_;
  UniqueFd fd_;
  TensorBoardOptions options_;
  std::string waiting_;  // whole records
  std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep::inline v0
