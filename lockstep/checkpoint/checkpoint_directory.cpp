#include "lockstep/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>  // renameat2

#include "lockstep/checkpoint/mapped_file.h"
#include "lockstep/checkpoint/sharded_safetensors.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kRanks = "ranks.safetensors";
constexpr const char* kTrainer = "trainer.json";
constexpr const char* kConfig = "config.json";
constexpr const char* kChecksums = "checksums.json";
constexpr const char* kOwnFiles[] = {kModel, kOptimizer, kRanks, kTrainer, kConfig, kChecksums};
constexpr std::string_view kTensors = ".safetensors";

fs::path beside(const fs::path& path, const char* suffix) {
  fs::path other = path.has_filename() ? path : path.parent_path();  // "dir/" is "dir"
  other += suffix;
  return other;
}

[[noreturn]] void fail(const fs::path& path, int errnum) {
  throw system_error("cannot write checkpoint " + path.string(), errnum);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(path, error.value());
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, errno);
}

// Puts the directory `fresh` in the place of `path`.
void publish(const fs::path& fresh, const fs::path& path) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno == ENOENT) {  // there is no former one
    rename_or_fail(fresh, path);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) fail(path, errno);
  const fs::path previous = beside(path, ".previous");
  remove_tree(previous);
  rename_or_fail(path, previous);
  rename_or_fail(fresh, path);
  remove_tree(previous);
}

fs::path where_it_is(const fs::path& path) {
  const fs::path previous = beside(path, ".previous");
  return !fs::exists(path) && fs::exists(previous) ? previous : path;
}

bool is_own_file(std::string_view name) {
  return std::find(std::begin(kOwnFiles), std::end(kOwnFiles), name) != std::end(kOwnFiles);
}

void check_further_name(const std::string& file) {
  if (!is_plain_file_name(file) || is_own_file(file) || file.ends_with(".partial"))
    throw InvalidArgument("write_checkpoint: '" + file + "' cannot be the name of a further part");
}

// Writes the files of one checkpoint and keeps their sums.
class DirectoryWriter {
 public:
  explicit DirectoryWriter(fs::path directory) : directory_(std::move(directory)) {}

  void write(const std::string& name, const Safetensors& tensors) {
    sums_[name] = write_safetensors(directory_ / name, tensors.tensors, tensors.metadata);
  }
  void write(const std::string& name, const std::string& text) {
    write_file_aside(directory_ / name, text);
    sums_[name] = checksum_of(text.data(), text.size());
  }
  void finish() { write_file_aside(directory_ / kChecksums, format_checksums(sums_)); }

 private:
  fs::path directory_;
  FileSums sums_;
};

void write_parts(const fs::path& directory, const Checkpoint& checkpoint) {
  DirectoryWriter writer(directory);
  writer.write(kModel, checkpoint.model);
  writer.write(kOptimizer, checkpoint.optimizer);
  writer.write(kRanks, checkpoint.ranks);
  writer.write(kTrainer, checkpoint.trainer_json);
  writer.write(kConfig, checkpoint.config_json);
  for (const auto& [name, tensors] : checkpoint.tensors) {
    const std::string file = name + std::string(kTensors);
    check_further_name(file);
    writer.write(file, tensors);
  }
  for (const auto& [name, text] : checkpoint.files) {
    check_further_name(name);
    if (name.ends_with(kTensors))
      throw InvalidArgument("write_checkpoint: give " + name + " as tensors, not as a file");
    writer.write(name, text);
  }
  writer.finish();
}

// Reads the files of one checkpoint and compares their sums.
class DirectoryReader {
 public:
  explicit DirectoryReader(fs::path directory)
      : directory_(std::move(directory)), sums_(read_checksums(directory_)) {}

  const FileSums& sums() const { return sums_; }

  Safetensors tensors(const std::string& name) const {
    const auto sum = sums_.find(name);
    return read_safetensors(directory_ / name,
                            sum == sums_.end() ? std::nullopt : std::optional(sum->second));
  }
  std::string text(const std::string& name) const {
    std::string text = read_small_file(directory_ / name);
    if (const auto sum = sums_.find(name); sum != sums_.end())
      check_sum(checksum_of(text.data(), text.size()), sum->second, (directory_ / name).string());
    return text;
  }
  // Part of a sharded model, which is read as such.
  bool is_of_model(const std::string& name) const {
    return name.starts_with("model-") || name == std::string(kModel) + ".index.json";
  }

 private:
  fs::path directory_;
  FileSums sums_;
};

// Tells a directory from the one that takes its place; {} where there is none.
std::array<int64_t, 4> identity_of(const fs::path& path) {
  struct stat info{};
  if (::stat(where_it_is(path).c_str(), &info) != 0) return {};
  return {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino), info.st_mtim.tv_sec,
          info.st_mtim.tv_nsec};
}

Checkpoint read_once(const fs::path& path, CheckpointParts parts) {
  const fs::path from = where_it_is(path);
  if (!fs::is_directory(from)) {
    throw CheckpointError(path.string() + ": no such checkpoint; give a directory that holds " +
                          kModel);
  }
  const DirectoryReader reader(from);
  Checkpoint checkpoint;
  checkpoint.config_json = reader.text(kConfig);
  checkpoint.model = read_model_safetensors(from, reader.sums());
  const bool all = parts == CheckpointParts::kAll;
  if (all) {
    checkpoint.optimizer = reader.tensors(kOptimizer);
    checkpoint.ranks = reader.tensors(kRanks);
    checkpoint.trainer_json = reader.text(kTrainer);
  }
  for (const auto& [name, sum] : reader.sums()) {
    if (is_own_file(name) || reader.is_of_model(name)) continue;
    if (!name.ends_with(kTensors))
      checkpoint.files[name] = reader.text(name);
    else if (all)
      checkpoint.tensors[name.substr(0, name.size() - kTensors.size())] = reader.tensors(name);
  }
  return checkpoint;
}

}  // namespace

void write_checkpoint(const fs::path& path, const Checkpoint& checkpoint) {
  const fs::path fresh = beside(path, ".partial");
  remove_tree(fresh);
  std::error_code error;
  fs::create_directories(fresh, error);
  if (error) fail(path, error.value());
  try {
    write_parts(fresh, checkpoint);
    publish(fresh, beside(path, ""));
  } catch (...) {
    fs::remove_all(fresh, error);
    throw;
  }
  sync_directory(beside(path, "").parent_path());
  fs::remove_all(fresh,
                 error);  // now the former checkpoint; a leftover is removed by the next writer
}

Checkpoint read_checkpoint(const fs::path& path, CheckpointParts parts) {
  constexpr int kTries = 10;
  for (int n = 1;; ++n) {
    const auto before = identity_of(path);
    try {
      return read_once(path, parts);
    } catch (const CheckpointError&) {
      // Files of two checkpoints, or some that are gone: a writer has put another in its place.
      if (n == kTries || identity_of(path) == before) throw;
    }
  }
}

FileSums read_checksums(const fs::path& directory) {
  const fs::path path = directory / kChecksums;
  if (!fs::exists(path)) return {};
  return parse_checksums(read_small_file(path), path.string());
}

bool checkpoint_exists(const fs::path& path) {
  return has_model_safetensors(where_it_is(path));
}

std::map<std::string, FileVerdict> verify_checkpoint(const fs::path& path) {
  std::map<std::string, FileVerdict> verdicts;
  const fs::path from = where_it_is(path);
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

}  // namespace lockstep
