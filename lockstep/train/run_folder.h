// RunFolder: what a training run leaves in its output directory, and where.
#pragma once

#include <filesystem>
#include <functional>
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

// The names of all of these.
std::vector<std::string> parts_of(const RunFolder& folder);

// Makes room for a new run in `root`, where a former one has left some of `parts` (names): they are
// moved to root/previous. What was in root/previous is moved on to root/previous-1, or -2, ...: one
// more than the greatest there is, so that the greatest is the latest. Nothing is deleted. A line
// that says what is where now; nothing if there was no former run. Throws SystemError.
std::optional<std::string> move_former_run_aside(const std::filesystem::path& root,
                                                 const std::vector<std::string>& parts);
// Of a run folder.
std::optional<std::string> move_former_run_aside(const RunFolder& folder);

// Whether what is in `root` was left by an earlier attempt of the job that this process belongs to:
// its launcher has started it again, after a failure or since hosts came or went (`lockstep run`'s,
// torchrun's and Slurm's variables tell). Such a run goes on by itself.
bool left_by_this_job(const std::filesystem::path& root, const EnvLookup& env);
// What the innermost launcher or scheduler that can start this process again calls its job; ""
// where none has a name for it.
std::string job_id(const EnvLookup& env);
// The same of launchers alone, which end all of an attempt before they start another; a scheduler's
// job may be a shell in which somebody starts what he likes.
std::string launcher_job_id(const EnvLookup& env);
// The names of this process's job into `root`, by which the above knows it. Throws SystemError.
void name_job(const std::filesystem::path& root, const EnvLookup& env);
// move_former_run_aside() where it is not so, and name_job(). Throws SystemError.
std::optional<std::string> make_room_for_run(const std::filesystem::path& root,
                                             const std::vector<std::string>& parts,
                                             const EnvLookup& env);
std::optional<std::string> make_room_for_run(const RunFolder& folder, const EnvLookup& env);

// Where the checkpoint that `path` means may be, in the order in which to look: itself, then the
// best and the last one of a run folder, or of an output directory of Trainer's. With links or
// without (checkpoint_at()).
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& path);
// The first of them that `is_one` takes; nothing where there is none.
std::optional<std::filesystem::path> find_in_run(
    const std::filesystem::path& path,
    const std::function<bool(const std::filesystem::path&)>& is_one);
// The first that is one. Throws CheckpointError if there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);
// The first that has a model's tensors, others' directories included (tensor_file.h); `path`, a
// file of tensors for example, where there is none.
std::filesystem::path checkpoint_meant(const std::filesystem::path& path);

}  // namespace lockstep
