// RunFolder: the files that a training run leaves in its output directory.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

struct RunFolder {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.json"; }  // the settings
  // A line for each log and evaluation.
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }  // the series
  // The link to the best checkpoint.
  std::filesystem::path best() const { return checkpoints() / "best"; }
  std::filesystem::path last() const { return checkpoints() / "last"; }  // the link to the latest
  std::filesystem::path result() const { return root / "result.json"; }  // how the run ended
  // The two pictures; each has a Chinese version beside it (in_chinese()).
  std::filesystem::path report() const { return root / "report.svg"; }
  std::filesystem::path memory() const { return root / "memory.svg"; }  // a rank's memory
  std::filesystem::path requeue() const { return root / "requeue"; }    // requeue_note.h
  std::filesystem::path job() const { return root / "job.json"; }       // the job that writes here
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }  // event files
  std::filesystem::path trace() const { return root / "trace.json"; }  // a timeline of all ranks
};

// The names of all of these.
LOCKSTEP_API std::vector<std::string> parts_of(const RunFolder& folder);

// Makes room for a new run in `root`: moves what a former run has left of `parts` (names) to
// root/previous. The former root/previous moves to root/previous-1, -2, ...: one more than the
// greatest number, so that the greatest is the latest. Nothing is deleted. Returns a line that says
// what is where now; nullopt if there was no former run.
// Throws: SystemError.
LOCKSTEP_API std::optional<std::string> move_former_run_aside(
    const std::filesystem::path& root, const std::vector<std::string>& parts);
// The same for folder.root and parts_of(folder).
LOCKSTEP_API std::optional<std::string> move_former_run_aside(const RunFolder& folder);

// Whether an earlier attempt of this process's job has left what is in `root`: the launcher has
// started the job again, after a failure or because hosts came or went. The variables of `lockstep
// run`, torchrun and Slurm tell. Such a run resumes without being asked.
LOCKSTEP_API bool left_by_this_job(const std::filesystem::path& root, const EnvLookup& env);
// The name that the innermost launcher or scheduler which can start this process again has for its
// job; "" if none has a name for it.
LOCKSTEP_API std::string job_id(const EnvLookup& env);
// The same for launchers only, which end an attempt before they start another. A scheduler's job
// may be a shell in which a user starts several programs.
LOCKSTEP_API std::string launcher_job_id(const EnvLookup& env);
// Writes the names of this process's job into `root`, for left_by_this_job().
// Throws: SystemError.
LOCKSTEP_API void name_job(const std::filesystem::path& root, const EnvLookup& env);
// Calls move_former_run_aside() unless left_by_this_job(), and name_job().
// Throws: SystemError.
LOCKSTEP_API std::optional<std::string> make_room_for_run(const std::filesystem::path& root,
                                                          const std::vector<std::string>& parts,
                                                          const EnvLookup& env);
LOCKSTEP_API std::optional<std::string> make_room_for_run(const RunFolder& folder,
                                                          const EnvLookup& env);

// The places of the checkpoint that `path` may mean, in the order in which to look: `path` itself,
// then the best and the last one of a run folder or of Trainer's output directory. With or without
// links (checkpoint_at()).
LOCKSTEP_API std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& path);
// The first of them that `is_one` accepts; nullopt if there is none.
LOCKSTEP_API std::optional<std::filesystem::path> find_in_run(
    const std::filesystem::path& path,
    const std::function<bool(const std::filesystem::path&)>& is_one);
// The first that is a checkpoint.
// Throws: CheckpointError if there is none.
LOCKSTEP_API std::filesystem::path find_checkpoint(const std::filesystem::path& path);
// The first that has a model's tensors, also in directories of other programs (tensor_file.h).
// `path` itself if there is none, for example for a file of tensors.
LOCKSTEP_API std::filesystem::path checkpoint_meant(const std::filesystem::path& path);

}  // namespace lockstep::inline v0
