// The files of a checkpoint directory, and how several ranks write them together. Not a public
// header.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checksum.h"
#include "lockstep/checkpoint/internal/file_to_write.h"
#include "lockstep/checkpoint/slice_index.h"
#include "lockstep/core/aside_file.h"

namespace lockstep::inline v0::internal {

inline constexpr const char* kModelStem = "model";
inline constexpr const char* kOptimizerStem = "optimizer";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kModelSlices = "model.slices.json";
inline constexpr const char* kRanksFile = "ranks.safetensors";
inline constexpr const char* kTrainerFile = "trainer.json";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kChecksumsFile = "checksums.json";

// A file name that write_checkpoint() itself uses: no further part may have it.
bool is_own_file(std::string_view name);

// The file of a kind that a rank writes: file `index` of `count`; 0 of 1 is the only file; count 0:
// none.
struct FileTurn {
  int index = 0;
  int count = 1;
};
// By rank, for the ranks that write something; where none does, rank 0 writes an empty file.
std::vector<FileTurn> turns_of(const std::vector<bool>& writes);

// A rank's report of its files.
struct WrittenShare {
  FileSums sums;
  std::map<std::string, std::string> model_files;  // by tensor; where the model has several files
  SliceIndex model, optimizer;                     // where they are in slices, in several files
  int64_t model_bytes = 0;
};
std::string to_json(const WrittenShare& written);
// The report of a rank that could not write.
std::string failure_json(const std::string& message);
// Throws CheckpointError that begins with `source`, with the message of failure_json() if the text
// is one.
WrittenShare written_from_json(const std::string& text, const std::string& source);

// A file of tensors in the checkpoint's directory.
struct NamedFile {
  std::string name;
  FileToWrite contents;
};

// The files of the model and the optimizer that a rank must write. It holds the tensors without
// copying.
struct ShareToWrite {
  std::vector<NamedFile> files;
  WrittenShare written;  // except the checksums
};
// `in_slices`: whether some rank's model is sliced. Throws InvalidArgument for data that cannot be
// written.
ShareToWrite share_to_write(const Checkpoint& share, FileTurn model, FileTurn optimizer,
                            bool in_slices);

// Adds the further tensors of a rank other than the first, whose are among the rest. Throws
// InvalidArgument for impossible names.
void add_further_tensors(const Checkpoint& share, ShareToWrite& own);

// Files of one directory that are written, and synced together afterwards. Throws SystemError.
class FilesUnderWay {
 public:
  explicit FilesUnderWay(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // Returns their checksums by name. Allocates the disk space for all of them first.
  FileSums write(const std::vector<NamedFile>& files);
  FileSum write(const std::string& name, const std::string& text);
  // Gives the files their names and makes them durable.
  void commit();

 private:
  AsideFile& open(const std::string& name);

  std::filesystem::path directory_;
  std::vector<std::unique_ptr<AsideFile>> open_;
};

// Throws as write_checkpoint(), but does not commit.
WrittenShare write_share(FilesUnderWay& files, const ShareToWrite& share);

// Throws InvalidArgument for impossible names of further parts.
void check_further_names(const Checkpoint& checkpoint);

// The other parts, which one rank writes.
struct RestToWrite {
  std::vector<NamedFile> files;
  std::map<std::string, std::string> texts;
  Metadata model, optimizer;
};
RestToWrite rest_to_write(const Checkpoint& checkpoint);
// Includes the indices of the ranks' files, and the checksums. Does not commit.
void write_rest(FilesUnderWay& files, const RestToWrite& rest,
                const std::vector<WrittenShare>& written);
// Writes a whole checkpoint from one rank.
void write_alone(const std::filesystem::path& directory, const Checkpoint& checkpoint);

}  // namespace lockstep::inline v0::internal
