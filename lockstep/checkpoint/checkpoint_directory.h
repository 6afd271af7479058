// A checkpoint: a directory with everything that training needs to go on, complete at every moment.
//
//   model.safetensors      parameters and buffers
//   optimizer.safetensors  state and options of the optimizer
//   ranks.safetensors      what differs from rank to rank, such as generators
//   trainer.json           where training stood
//   config.json            how it was set up
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

struct Checkpoint {
  Safetensors model;
  Safetensors optimizer;
  Safetensors ranks;
  std::string trainer_json;
  std::string config_json;
};

// Writes `checkpoint` as the directory `path`, in place of a former one. The new directory is
// written beside it
// ("<path>.partial"), synced and exchanged with the former in one step, so that whoever opens
// `path`, whenever the writer was killed, finds one whole checkpoint. (Where the file system cannot
// exchange directories, as NFS, there is a moment with the former one under "<path>.previous";
// readers look there too.) Leftovers of a killed writer are removed. One writer a path at a time.
// Throws SystemError; then `path` is as it was.
void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

// What to read of a checkpoint.
enum class CheckpointParts { kAll, kModelAndConfig };

// Throws CheckpointError that names the file.
Checkpoint read_checkpoint(const std::filesystem::path& path,
                           CheckpointParts parts = CheckpointParts::kAll);

// True if there is a checkpoint at `path`.
bool checkpoint_exists(const std::filesystem::path& path);

}  // namespace lockstep
