// The note that a training leaves in its folder when a signal has stopped it. Scripts of schedulers
// look for the file and start the training again, which then resumes (docs/schedulers.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The contents of the note.
struct RequeueNote {
  int signal = 0;
  int64_t step = 0;
  std::filesystem::path checkpoint;  // to resume from

  bool operator==(const RequeueNote&) const = default;
};

// "SIGTERM"
LOCKSTEP_API std::string stop_signal_name(int signal);

// The file `requeue` of a run's folder.
LOCKSTEP_API std::filesystem::path requeue_file(const std::filesystem::path& folder);
// Writes {"signal": "SIGTERM", "step": 120, "checkpoint": an absolute path}. One rank calls it.
// Throws: SystemError.
LOCKSTEP_API void write_requeue_note(const std::filesystem::path& folder, const RequeueNote& note);
// Removes the note if there is one.
// Throws: SystemError.
LOCKSTEP_API void remove_requeue_note(const std::filesystem::path& folder);
// nullopt if there is none.
// Throws: CheckpointError if the file is no such note; SystemError.
LOCKSTEP_API std::optional<RequeueNote> read_requeue_note(const std::filesystem::path& folder);

}  // namespace lockstep::inline v0
