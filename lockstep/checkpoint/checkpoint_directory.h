// A checkpoint: a directory with everything that training needs to continue, complete at every
// moment.
//
//   model.safetensors      parameters and buffers
//   optimizer.safetensors  state and options of the optimizer
//   ranks.safetensors      state that differs from rank to rank, such as generators
//   trainer.json           the progress of training
//   config.json            the training's configuration
//   checksums.json         of all the others (checksum.h)
//
// A trainer may add further parts under `tensors` and `files`. Where several ranks have written
// (checkpoint_writer.h), the model or the optimizer's state is in several files, with an index:
//
//   model-00001-of-00002.safetensors, ..., model.safetensors.index.json
//       whole tensors in each, as Hugging Face's libraries write and read them
//       (sharded_safetensors.h)
//   optimizer-00001-of-00002.safetensors, ..., optimizer.safetensors.index.json
//       slices (slice_index.h)
//   model-00001-of-00002.safetensors, ..., model.slices.json
//       slices, where the ranks have parts of the model's tensors (divided_state.h)
//
// They are read as if they were one, on any number of ranks. The state for a bit-identical
// resumption in the middle of an epoch has these places:
//
//   parameters, buffers    model           module_state.h
//   optimizer              optimizer       named_optimizer_state.h; the schedule's factor is in it
//   random states          ranks           rng_state.h, a row a rank
//   partial sums           ranks           a row a rank
//   scaler                 files           "scaler.json", scaler_state.h
//   step, epoch, sampler   trainer_json    schedules and samplers are functions of these
//   vocabulary, labels     files           "vocab.txt", ...
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The contents of a checkpoint.
struct Checkpoint {
  Safetensors model;
  // To write: a rank's part of a model that is divided among ranks, at most one slice of each
  // tensor; `model` then has the rank's undivided tensors. When read: as ModelForm says.
  SlicedTensors model_slices;
  SlicedTensors optimizer;  // from one writing rank, at most one slice of each tensor
  Safetensors ranks;
  std::string trainer_json;
  std::string config_json;
  // Further parts. Tensors by name: "ema" is the file ema.safetensors. Small files by file name,
  // with their bytes: "scaler.json", "vocab.txt". Names are plain (is_plain_file_name()), differ
  // from those above, and do not end in ".partial"; those of files do not end in ".safetensors".
  std::map<std::string, Safetensors> tensors;
  std::map<std::string, std::string> files;
};

// Writes the whole `checkpoint` as the directory `path`, in place of a former one. The new
// directory is written beside it ("<path>.partial"), synced and exchanged with the former one in
// one step, so that a reader of `path` always finds one whole checkpoint, even if the writer was
// killed. (Where the file system cannot exchange directories, as NFS, there is a moment with the
// former one under "<path>.previous"; readers look there too.) Leftovers of a killed writer are
// removed. A path must have one writer at a time.
// Throws: SystemError, and InvalidArgument for an impossible name; then `path` is unchanged.
LOCKSTEP_API void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

// The parts of a checkpoint to read. kModelAndConfig: the model, config.json and `files`.
enum class CheckpointParts { kAll, kModelAndConfig };

// The form in which a model is read. kWhole: `model` has whole tensors; sliced ones are assembled,
// which takes their memory. kSlices: `model_slices` has all of it, mapped, in any number of files,
// and `model` is empty.
enum class ModelForm { kWhole, kSlices };

// Reads the checkpoint. Tensors are mapped (read_safetensors()), so that it may be replaced or
// removed while they live, but not changed in place. Every file that is read is compared with its
// checksum; a checkpoint without checksums.json, as other programs write them, is accepted without
// further parts. A writer may put another checkpoint in its place meanwhile: the result is always
// one whole checkpoint.
// Throws: a one-line CheckpointError that names the file.
LOCKSTEP_API Checkpoint read_checkpoint(const std::filesystem::path& path,
                                        CheckpointParts parts = CheckpointParts::kAll,
                                        ModelForm form = ModelForm::kWhole);

// The directory of the checkpoint that `path` refers to, for direct access: `path`;
// "PATH.previous", where a writer is about to replace it; or, where links cannot be made
// (checkpoint_series.h), the directory that the small file `path` names, or the latest one of a
// folder that was copied without `last`. `path` where there is none of these. Every function here
// resolves paths in this way.
LOCKSTEP_API std::filesystem::path checkpoint_at(const std::filesystem::path& path);

// True if there is a checkpoint at `path`.
LOCKSTEP_API bool checkpoint_exists(const std::filesystem::path& path);

// The checksums.json of a directory; empty if there is none.
// Throws: CheckpointError if it is damaged.
LOCKSTEP_API FileSums read_checksums(const std::filesystem::path& directory);

// The result of comparing a file with the checkpoint's checksums.json.
enum class FileVerdict { kGood, kDamaged, kMissing };
// Verifies every file that checksums.json lists. Empty if there is no list.
// Throws: CheckpointError if the list itself is damaged.
LOCKSTEP_API std::map<std::string, FileVerdict> verify_checkpoint(
    const std::filesystem::path& path);

}  // namespace lockstep::inline v0
