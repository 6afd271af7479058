// A checkpoint: a directory with everything that training needs to go on, complete at every moment.
//
//   model.safetensors      parameters and buffers
//   optimizer.safetensors  state and options of the optimizer
//   ranks.safetensors      what differs from rank to rank, such as generators
//   trainer.json           where training stood
//   config.json            how it was set up
//   checksums.json         of all the others (checksum.h)
//
// and whatever else a trainer gives under `tensors` and `files`. Where several ranks have written
// (checkpoint_writer.h), the model or the optimizer's state is in several files, with an index:
//
//   model-00001-of-00002.safetensors, ..., model.safetensors.index.json   whole tensors in each, as
//                          Hugging Face's libraries write and read them (sharded_safetensors.h)
//   optimizer-00001-of-00002.safetensors, ..., optimizer.safetensors.index.json   slices
//                          (slice_index.h)
//   model-00001-of-00002.safetensors, ..., model.slices.json   slices, where the ranks have parts of the
//                          model's tensors (divided_state.h)
//
// They are read as if they were one, on any number of ranks. What a bit-identical resumption in
// the midst of an epoch needs has these places:
//
//   parameters, buffers    model           module_state.h
//   optimizer              optimizer       named_optimizer_state.h; the schedule's factor is in it
//   random states          ranks           rng_state.h, a row a rank
//   sums under way         ranks           a row a rank
//   scaler                 files           "scaler.json", scaler_state.h
//   step, epoch, sampler   trainer_json    schedules and samplers are functions of these
//   vocabulary, labels     files           "vocab.txt", ...
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/sliced_tensors.h"

namespace lockstep {

struct Checkpoint {
  Safetensors model;
  // To write: what a rank has of a model that is divided among ranks, one slice of each tensor at most; `model` is
  // then what it has whole besides. Read: as ModelForm says.
  SlicedTensors model_slices;
  SlicedTensors optimizer;  // of what one rank writes, one slice of each tensor at most
  Safetensors ranks;
  std::string trainer_json;
  std::string config_json;
  // Further parts. Tensors by name: "ema" is the file ema.safetensors. Small files by file name, as
  // they are: "scaler.json", "vocab.txt". Names are plain (is_plain_file_name()), none of those
  // above, and do not end in ".partial"; those of files do not end in ".safetensors".
  std::map<std::string, Safetensors> tensors;
  std::map<std::string, std::string> files;
};

// Writes the whole `checkpoint` as the directory `path`, in place of a former one. The new directory is
// written beside it ("<path>.partial"), synced and exchanged with the former in one step, so that
// whoever opens `path`, whenever the writer was killed, finds one whole checkpoint. (Where the file
// system cannot exchange directories, as NFS, there is a moment with the former one under
// "<path>.previous"; readers look there too.) Leftovers of a killed writer are removed. One writer
// a path at a time. Throws SystemError, and InvalidArgument for a name that cannot be; then `path`
// is as it was.
void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

// What to read of a checkpoint. kModelAndConfig: the model, config.json and `files`.
enum class CheckpointParts { kAll, kModelAndConfig };

// How a model is read. kWhole: `model` has whole tensors; those that lie in slices are put together, which takes their
// memory. kSlices: `model_slices` has all of it, mapped, in whatever files it is, and `model` is empty.
enum class ModelForm { kWhole, kSlices };

// Reads the checkpoint; tensors are mapped (read_safetensors()), so that it may be replaced or
// removed while they live, but not changed in place. Every file that is read is compared with its
// checksum; a checkpoint without checksums.json, as others write them, is taken as it is, without
// further parts. A writer may put another checkpoint in its place meanwhile: what is returned is
// one whole checkpoint. Throws CheckpointError of one line that names the file.
Checkpoint read_checkpoint(const std::filesystem::path& path,
                           CheckpointParts parts = CheckpointParts::kAll,
                           ModelForm form = ModelForm::kWhole);

// The directory of the checkpoint that `path` means, for whoever looks into it himself: `path`; or "PATH.previous",
// where a writer is about to put another in its place; or, where links cannot be made (checkpoint_series.h), the one
// that the small file `path` names, or the latest of a folder whose `last` a copy has left out. `path` where there is
// none of these. Every function here looks there by itself.
std::filesystem::path checkpoint_at(const std::filesystem::path& path);

// True if there is a checkpoint at `path`.
bool checkpoint_exists(const std::filesystem::path& path);

// The checksums.json of a directory; empty if there is none. Throws CheckpointError if it is
// damaged.
FileSums read_checksums(const std::filesystem::path& directory);

// What a checkpoint's checksums.json says of a file in it.
enum class FileVerdict { kGood, kDamaged, kMissing };
// Reads every file that checksums.json lists. Empty if there is none. Throws CheckpointError if the
// list itself is damaged.
std::map<std::string, FileVerdict> verify_checkpoint(const std::filesystem::path& path);

}  // namespace lockstep
