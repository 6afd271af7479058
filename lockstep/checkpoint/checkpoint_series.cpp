#include "lockstep/checkpoint/checkpoint_series.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>  // renameat2

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr const char* kLeftover = ".partial";

std::optional<int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (read.ec != std::errc() || read.ptr != end || step < 0) return std::nullopt;
  return step;
}

// Lets the link `folder`/`name` mean `target`, in one step. What it meant, or was, is gone.
void let_mean(const fs::path& folder, const char* name, const fs::path& target) {
  const fs::path link = folder / name, fresh = folder / (name + std::string(kLeftover));
  std::error_code error;
  fs::remove_all(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (error) throw system_error("cannot write " + link.string(), error.value());
  // A directory cannot be renamed over; it changes places with the link.
  const bool is_directory = fs::is_directory(fs::symlink_status(link, error));
  const int failed =
      is_directory ? ::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE)
                   : ::rename(fresh.c_str(), link.c_str());
  if (failed != 0) throw system_error("cannot write " + link.string(), errno);
  sync_directory(folder);
  fs::remove_all(fresh, error);
}

// Never half a checkpoint under its own name.
void remove_whole(const fs::path& path) {
  const fs::path doomed = path.string() + kLeftover;
  std::error_code error;
  fs::remove_all(doomed, error);
  fs::rename(path, doomed, error);
  if (error) throw system_error("cannot remove checkpoint " + path.string(), error.value());
  fs::remove_all(doomed, error);
}

void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kPrefix) && name.ends_with(kLeftover)) doomed.push_back(entry.path());
  }
  for (const fs::path& path : doomed) fs::remove_all(path, error);
}

}  // namespace

std::vector<int64_t> surplus_checkpoints(const std::vector<int64_t>& steps, int64_t limit,
                                         const std::set<int64_t>& kept) {
  if (limit <= 0) return {};
  std::set<int64_t> candidates(steps.begin(), steps.end());
  int64_t room = limit;
  for (const int64_t step : kept) room -= static_cast<int64_t>(candidates.erase(step));
  for (; room > 0 && !candidates.empty(); --room) candidates.erase(std::prev(candidates.end()));
  return {candidates.begin(), candidates.end()};
}

fs::path checkpoint_of_step(const fs::path& folder, int64_t step) {
  return folder / (std::string(kPrefix) + std::to_string(step));
}

std::vector<int64_t> checkpoint_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto step = step_of_name(entry.path().filename());
    if (step && checkpoint_exists(entry.path())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<int64_t> linked_step(const fs::path& folder, const char* name) {
  std::error_code error;
  const fs::path target = fs::read_symlink(folder / name, error);
  return error ? std::nullopt : step_of_name(target.filename());
}

void write_checkpoint_of_step(const fs::path& folder, int64_t step, const Checkpoint& checkpoint,
                              const SeriesOptions& options) {
  write_checkpoint(checkpoint_of_step(folder, step), checkpoint);
  continue_series(folder, step, options);
}

void continue_series(const fs::path& folder, int64_t step, const SeriesOptions& options) {
  remove_leftovers(folder);
  const fs::path path = checkpoint_of_step(folder, step);
  if (options.best) let_mean(folder, "best", path.filename());
  let_mean(folder, "last", path.filename());
  std::set<int64_t> kept{step};
  if (const auto best = linked_step(folder, "best")) kept.insert(*best);
  for (const int64_t surplus : surplus_checkpoints(checkpoint_steps(folder), options.limit, kept))
    remove_whole(checkpoint_of_step(folder, surplus));
}

}  // namespace lockstep
