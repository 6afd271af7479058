// RunFolder: what a training run leaves in its output directory, and where.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"

namespace lockstep {

struct RunFolder {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.json"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
  std::filesystem::path best() const { return checkpoints() / "best"; }
  std::filesystem::path last() const { return checkpoints() / "last"; }
  std::filesystem::path result() const { return root / "result.json"; }
  // The two pictures; each has a Chinese version beside it (in_chinese()).
  std::filesystem::path report() const { return root / "report.svg"; }
  std::filesystem::path memory() const { return root / "memory.svg"; }
  std::filesystem::path requeue() const { return root / "requeue"; }  // requeue_note.h
  std::filesystem::path job() const { return root / "job.json"; }
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
};

// Makes room for a new run in `root`, where a former one has left some of `parts` (names): they are
// moved to root/previous. What was in root/previous is moved on to root/previous-1, or -2, ...: one
// more than the greatest there is, so that the greatest is the latest. Nothing is deleted. A line
// that says what is where now; nothing if there was no former run. Throws SystemError.
std::optional<std::string> move_former_run_aside(const std::filesystem::path& root,
                                                 const std::vector<std::string>& parts);
// Of a run folder.
std::optional<std::string> move_former_run_aside(const RunFolder& folder);

// Whether what is in `root` was left by an earlier attempt of the job that this process belongs to: its launcher has
// started it again (torchrun's, Slurm's and `lockstep run`'s variables tell). Such a run goes on by itself.
bool left_by_this_job(const std::filesystem::path& root, const EnvLookup& env);
// The name of this process's job into `root`, by which the above knows it. Throws SystemError.
void name_job(const std::filesystem::path& root, const EnvLookup& env);
// move_former_run_aside() where it is not so, and name_job(). Throws SystemError.
std::optional<std::string> make_room_for_run(const std::filesystem::path& root,
                                             const std::vector<std::string>& parts,
                                             const EnvLookup& env);
std::optional<std::string> make_room_for_run(const RunFolder& folder, const EnvLookup& env);

// The checkpoint that `path` means: itself, or the best or else the last one of a run folder.
// Throws CheckpointError if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

}  // namespace lockstep
