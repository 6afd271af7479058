// The checkpoints of a run: directories checkpoint-<step>, as transformers names them, of which the
// best and the latest few are kept, and the links `last` and `best` to two of them. Where the file
// system has no links, small files contain their names instead ("checkpoint-300").
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Which checkpoints of `steps` to remove so that `limit` remain: those of `kept` (which count) and
// then the latest. As transformers' save_total_limit: limit 3 with a best one keeps it and the two
// latest. More than `limit` remain only where `kept` alone exceeds it. 0: no limit.
LOCKSTEP_API std::vector<int64_t> surplus_checkpoints(const std::vector<int64_t>& steps,
                                                      int64_t limit, const std::set<int64_t>& kept);

// The names of the links to the latest checkpoint and to the best.
inline constexpr const char* kLastCheckpoint = "last";
inline constexpr const char* kBestCheckpoint = "best";  // the link to the best

// "<folder>/checkpoint-<step>".
LOCKSTEP_API std::filesystem::path checkpoint_of_step(const std::filesystem::path& folder,
                                                      int64_t step);

// The steps of the whole checkpoints in `folder`, ascending. Empty if there is no such folder.
LOCKSTEP_API std::vector<int64_t> checkpoint_steps(const std::filesystem::path& folder);

// The step of the link `name` ("last", "best"), or of the file in its place.
LOCKSTEP_API std::optional<int64_t> linked_step(const std::filesystem::path& folder,
                                                const char* name);

// Checks that the existing `folder` can keep checkpoints: performs once, with almost no data, the
// file system operations of a checkpoint, so that hours of training do not end at the first one.
// Leaves nothing behind.
// Throws: SystemError.
LOCKSTEP_API void try_series(const std::filesystem::path& folder);
// Removes the leftovers of a killed try_series(). One process per folder calls it, after trying.
LOCKSTEP_API void remove_trials(const std::filesystem::path& folder) noexcept;

// The options of continue_series().
struct SeriesOptions {
  bool best = false;  // this is the best one so far
  int64_t limit = 0;  // number to keep; 0: all
};

// Called when the checkpoint of `step` is written: points `best` (if it is the best) and `last` to
// it, then removes checkpoints beyond the limit, but never those of `best` and `last`. If it is
// killed at any instant, `last` and `best` refer to whole checkpoints. A directory named `last` or
// `best` is replaced by the link. Leftovers of killed writers are removed, or get their name back
// where they are whole checkpoints. One writer per folder.
// Throws: SystemError.
LOCKSTEP_API void continue_series(const std::filesystem::path& folder, int64_t step,
                                  const SeriesOptions& options = {});

// Writes the checkpoint of `step`, and continue_series().
// Throws: as write_checkpoint().
LOCKSTEP_API void write_checkpoint_of_step(const std::filesystem::path& folder, int64_t step,
                                           const Checkpoint& checkpoint,
                                           const SeriesOptions& options = {});

}  // namespace lockstep::inline v0
