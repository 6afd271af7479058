// The checkpoints of a run: directories checkpoint-<step>, as transformers names them, of which the
// best and the latest few are kept, and beside them the links `last` and `best` to two of them; where the file system
// has no links, small files with their names instead ("checkpoint-300").
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"

namespace lockstep {

// Which of the checkpoints of `steps` to remove so that `limit` remain: those of `kept` (they
// count) and then the latest. As transformers' save_total_limit: limit 3 with a best one keeps it
// and the two latest. More than `limit` remain only where `kept` alone is more. 0: no limit.
std::vector<int64_t> surplus_checkpoints(const std::vector<int64_t>& steps, int64_t limit,
                                         const std::set<int64_t>& kept);

inline constexpr const char* kLastCheckpoint = "last";
inline constexpr const char* kBestCheckpoint = "best";

// "<folder>/checkpoint-<step>".
std::filesystem::path checkpoint_of_step(const std::filesystem::path& folder, int64_t step);

// The steps of the whole checkpoints in `folder`, ascending. Empty if there is no such folder.
std::vector<int64_t> checkpoint_steps(const std::filesystem::path& folder);

// The step that the link, or the file in its place, `name` ("last", "best") stands at.
std::optional<int64_t> linked_step(const std::filesystem::path& folder, const char* name);

// Whether `folder`, which is there, can keep checkpoints: does once, with next to nothing, what a checkpoint will need
// of its file system, so that hours of training do not end at the first one. Leaves nothing. Throws SystemError.
void try_series(const std::filesystem::path& folder);
// Removes what try_series() left there where it was killed. One process a folder, which is no longer trying.
void remove_trials(const std::filesystem::path& folder) noexcept;

struct SeriesOptions {
  bool best = false;  // this is the best so far
  int64_t limit = 0;  // how many to keep; 0: all
};

// The checkpoint of `step` is there, whole: lets `best` (where it is) and `last` mean it, then removes
// what is beyond the limit; of the checkpoints, those that `best` and `last` mean are never
// removed. Killed at any instant, `last` and `best` mean whole checkpoints. A directory `last` or
// `best` that stands in the way of a link is replaced. What killed writers left is removed, or gets its name back where
// it is a whole checkpoint. One writer a folder. Throws SystemError.
void continue_series(const std::filesystem::path& folder, int64_t step,
                     const SeriesOptions& options = {});

// Writes the checkpoint of `step`, and continue_series(). Throws as write_checkpoint().
void write_checkpoint_of_step(const std::filesystem::path& folder, int64_t step,
                              const Checkpoint& checkpoint, const SeriesOptions& options = {});

}  // namespace lockstep
