// The files of a checkpoint directory, and how several ranks write them together. Not a public
// header.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checksum.h"
#include "lockstep/checkpoint/slice_index.h"

namespace lockstep::internal {

inline constexpr const char* kModelStem = "model";
inline constexpr const char* kOptimizerStem = "optimizer";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kRanksFile = "ranks.safetensors";
inline constexpr const char* kTrainerFile = "trainer.json";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kChecksumsFile = "checksums.json";

// A name that write_checkpoint() gives a file by itself: no further part may have it.
bool is_own_file(std::string_view name);

// Which of the files of a kind a rank writes: file `index` of `count`; 0 of 1 is the one whole file;
// count 0: none.
struct FileTurn {
  int index = 0;
  int count = 1;
};
// By rank, of those that have something to write; where nobody has, rank 0 writes an empty file.
std::vector<FileTurn> turns_of(const std::vector<bool>& writes);

// What one rank has written.
struct WrittenShare {
  FileSums sums;
  std::map<std::string, std::string> model_files;  // by tensor; where the model has several files
  SliceIndex optimizer;                            // likewise
  int64_t model_bytes = 0;
};
std::string to_json(const WrittenShare& written);
// What a rank says that could not write.
std::string failure_json(const std::string& message);
// Throws CheckpointError that begins with `source`, with the message of a failure_json().
WrittenShare written_from_json(const std::string& text, const std::string& source);

// Writes this rank's tensors of the model and of the optimizer. Throws as write_checkpoint().
WrittenShare write_share(const std::filesystem::path& directory, const Checkpoint& share,
                         FileTurn model, FileTurn optimizer);
// Throws InvalidArgument for names of further parts that cannot be.
void check_further_names(const Checkpoint& checkpoint);
// The other parts, the indices of what the ranks have written, and the checksums. One rank calls.
void write_rest(const std::filesystem::path& directory, const Checkpoint& checkpoint,
                const std::vector<WrittenShare>& written);

}  // namespace lockstep::internal
