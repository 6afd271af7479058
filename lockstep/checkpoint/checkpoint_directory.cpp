#include "lockstep/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2

#include <cerrno>
#include <fstream>
#include <sstream>

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

std::string read_text(const fs::path& path) {
  constexpr uintmax_t kMost = 64 << 20;
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) throw CheckpointError("cannot read " + path.string() + ": " + error.message());
  if (size > kMost)
    throw CheckpointError(path.string() + ": larger than 64 MiB; this is no file of a checkpoint");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw CheckpointError("cannot read " + path.string());
  return text.str();
}

fs::path where_it_is(const fs::path& path) {
  const fs::path previous = beside(path, ".previous");
  return !fs::exists(path) && fs::exists(previous) ? previous : path;
}

}  // namespace

void write_checkpoint(const fs::path& path, const Checkpoint& checkpoint) {
  const fs::path fresh = beside(path, ".partial");
  remove_tree(fresh);
  std::error_code error;
  fs::create_directories(fresh, error);
  if (error) fail(path, error.value());
  try {
    write_safetensors(fresh / kModel, checkpoint.model.tensors, checkpoint.model.metadata);
    write_safetensors(fresh / kOptimizer, checkpoint.optimizer.tensors,
                      checkpoint.optimizer.metadata);
    write_safetensors(fresh / kRanks, checkpoint.ranks.tensors, checkpoint.ranks.metadata);
    write_file_aside(fresh / kTrainer, checkpoint.trainer_json);
    write_file_aside(fresh / kConfig, checkpoint.config_json);
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
  const fs::path from = where_it_is(path);
  if (!fs::is_directory(from)) {
    throw CheckpointError(path.string() + ": no such checkpoint; give a directory that holds " +
                          kModel);
  }
  Checkpoint checkpoint;
  checkpoint.config_json = read_text(from / kConfig);
  checkpoint.model = read_safetensors(from / kModel);
  if (parts == CheckpointParts::kAll) {
    checkpoint.optimizer = read_safetensors(from / kOptimizer);
    checkpoint.ranks = read_safetensors(from / kRanks);
    checkpoint.trainer_json = read_text(from / kTrainer);
  }
  return checkpoint;
}

bool checkpoint_exists(const fs::path& path) {
  return fs::exists(where_it_is(path) / kModel);
}

}  // namespace lockstep
