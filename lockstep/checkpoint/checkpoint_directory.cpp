#include "lockstep/checkpoint/checkpoint_directory.h"

#include <sys/stat.h>

#include <array>
#include <utility>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/internal/checkpoint_files.h"
#include "lockstep/checkpoint/internal/partial_directory.h"
#include "lockstep/checkpoint/mapped_file.h"
#include "lockstep/checkpoint/sharded_safetensors.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTensors = ".safetensors";

// Reads the files of one checkpoint and compares their checksums.
class DirectoryReader {
 public:
  explicit DirectoryReader(fs::path directory)
      : directory_(std::move(directory)), sums_(read_checksums(directory_)) {}

  const FileSums& sums() const { return sums_; }

  Safetensors tensors(const std::string& name) const {
    return read_safetensors(directory_ / name, find_sum(sums_, name));
  }
  std::string text(const std::string& name) const {
    std::string text = read_small_file(directory_ / name);
    if (const auto sum = find_sum(sums_, name))
      check_sum(checksum_of(text.data(), text.size()), *sum, (directory_ / name).string());
    return text;
  }

 private:
  fs::path directory_;
  FileSums sums_;
};

// The place of a checkpoint, and an identity that differs from that of a directory that replaces
// it; {} where there is none.
std::pair<fs::path, std::array<int64_t, 4>> identity_of(const fs::path& path) {
  const fs::path at = checkpoint_at(path);
  struct stat info{};
  if (::stat(at.c_str(), &info) != 0) return {at, {}};
  return {at,
          {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino),
           info.st_mtim.tv_sec, info.st_mtim.tv_nsec}};
}

Checkpoint read_once(const fs::path& path, CheckpointParts parts, ModelForm form) {
  const fs::path from = checkpoint_at(path);
  if (!fs::is_directory(from)) {
    throw CheckpointError(path.string() + ": no such checkpoint; give a directory that holds " +
                          internal::kModelFile);
  }
  const DirectoryReader reader(from);
  Checkpoint checkpoint;
  checkpoint.config_json = reader.text(internal::kConfigFile);
  if (form == ModelForm::kSlices)
    checkpoint.model_slices = read_model_slices(from, reader.sums());
  else
    checkpoint.model = read_model_safetensors(from, reader.sums());
  const bool all = parts == CheckpointParts::kAll;
  if (all) {
    checkpoint.optimizer = read_sliced(from, internal::kOptimizerStem, reader.sums());
    checkpoint.ranks = reader.tensors(internal::kRanksFile);
    checkpoint.trainer_json = reader.text(internal::kTrainerFile);
  }
  for (const auto& [name, sum] : reader.sums()) {
    if (internal::is_own_file(name)) continue;
    if (!name.ends_with(kTensors))
      checkpoint.files[name] = reader.text(name);
    else if (all)
      checkpoint.tensors[name.substr(0, name.size() - kTensors.size())] = reader.tensors(name);
  }
  return checkpoint;
}

// Returns `path`, or the directory beside it if a writer is, or was killed, between the two
// renames.
fs::path whole_at(const fs::path& path) {
  std::error_code error;
  const fs::path previous = internal::beside(path, internal::kPrevious);
  return !fs::exists(path, error) && fs::exists(previous, error) ? previous : path;
}

}  // namespace

fs::path checkpoint_at(const fs::path& given) {
  const fs::path path = internal::beside(given, "");  // "last/" is "last"
  const fs::path folder = path.parent_path(), whole = whole_at(path);
  std::error_code error;
  const fs::file_status status = fs::status(whole, error);
  if (fs::is_directory(status)) return whole == path ? given : whole;
  // Either a link whose checkpoint is between two renames, or a file in the link's place.
  if (const auto step = linked_step(folder, path.filename().c_str())) {
    const fs::path linked = whole_at(checkpoint_of_step(folder, *step));
    if (fs::exists(linked, error)) return linked;
  }
  if (fs::exists(status) || path.filename() != kLastCheckpoint) return given;
  const std::vector<int64_t> steps = checkpoint_steps(folder);
  return steps.empty() ? given : whole_at(checkpoint_of_step(folder, steps.back()));
}

void write_checkpoint(const fs::path& path, const Checkpoint& checkpoint) {
  internal::check_further_names(checkpoint);
  internal::PartialDirectory fresh(path, internal::new_attempt());
  internal::write_alone(fresh.directory(), checkpoint);
  fresh.publish();
}

Checkpoint read_checkpoint(const fs::path& path, CheckpointParts parts, ModelForm form) {
  // A writer that saves without pause may interfere with every attempt for a while.
  const Deadline patience = Deadline::seconds(10);
  while (true) {
    const auto before = identity_of(path);
    try {
      return read_once(path, parts, form);
    } catch (const CheckpointError&) {
      // The files are of two checkpoints, or some are missing: a writer has replaced the
      // checkpoint, or is about to, and has renamed this one.
      if (patience.expired() || identity_of(path) == before) throw;
    }
  }
}

FileSums read_checksums(const fs::path& directory) {
  const fs::path path = directory / internal::kChecksumsFile;
  if (!fs::exists(path)) return {};
  return parse_checksums(read_small_file(path), path.string());
}

bool checkpoint_exists(const fs::path& path) {
  return has_model_safetensors(checkpoint_at(path));
}

std::map<std::string, FileVerdict> verify_checkpoint(const fs::path& path) {
  std::map<std::string, FileVerdict> verdicts;
  const fs::path from = checkpoint_at(path);
  for (const auto& [name, sum] : read_checksums(from)) {
    FileVerdict& verdict = verdicts[name];
    verdict = FileVerdict::kMissing;
    if (!fs::is_regular_file(from / name)) continue;
    const auto file = MappedFile::open(from / name);
    const auto bytes = file->bytes();
    verdict =
        checksum_of(bytes.data(), bytes.size()) == sum ? FileVerdict::kGood : FileVerdict::kDamaged;
  }
  return verdicts;
}

}  // namespace lockstep::inline v0
