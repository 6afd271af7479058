// The note that a training which a signal has stopped leaves in its folder: whoever started it may start it again,
// and it goes on. Schedulers' scripts look for the file (docs/schedulers.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

struct RequeueNote {
  int signal = 0;
  int64_t step = 0;
  std::filesystem::path checkpoint;  // to go on from

  bool operator==(const RequeueNote&) const = default;
};

// "SIGTERM"
std::string stop_signal_name(int signal);

// The file `requeue` of a run's folder.
std::filesystem::path requeue_file(const std::filesystem::path& folder);
// Writes it: {"signal": "SIGTERM", "step": 120, "checkpoint": an absolute path}. One rank calls. Throws SystemError.
void write_requeue_note(const std::filesystem::path& folder, const RequeueNote& note);
// It is gone afterwards, whether it was there or not. Throws SystemError.
void remove_requeue_note(const std::filesystem::path& folder);
// Nothing where there is none. Throws CheckpointError where it is not such a note, SystemError.
std::optional<RequeueNote> read_requeue_note(const std::filesystem::path& folder);

}  // namespace lockstep
