#include "lockstep/checkpoint/checkpoint_series.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>

#include "lockstep/checkpoint/internal/partial_directory.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr const char* kTrial = "checkpoint-trial-";
constexpr const char* kLeftover = ".partial";

std::optional<int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (read.ec != std::errc() || read.ptr != end || step < 0) return std::nullopt;
  return step;
}

// Points the link `folder`/`name` to `target`, in one step; its former target or content is gone.
// Where the file system has no links, a file with the target's name replaces it.
void let_mean(const fs::path& folder, const char* name, const fs::path& target) {
  const fs::path link = folder / name, fresh = folder / (name + std::string(kLeftover));
  std::error_code error;
  fs::remove_all(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (error) write_file_aside(fresh, target.string() + "\n");
  // A directory cannot be replaced by a rename; it is exchanged with the link.
  if (fs::is_directory(fs::symlink_status(link, error)))
    internal::put_in_place(fresh, link);
  else if (::rename(fresh.c_str(), link.c_str()) != 0)
    throw system_error("cannot write " + link.string(), errno);
  sync_directory(folder);
  fs::remove_all(fresh, error);
}

// Renames first, so that no incomplete checkpoint keeps its name.
void remove_whole(const fs::path& path) {
  const fs::path doomed = path.string() + kLeftover;
  std::error_code error;
  fs::remove_all(doomed, error);
  fs::rename(path, doomed, error);
  if (error) throw system_error("cannot remove checkpoint " + path.string(), error.value());
  fs::remove_all(doomed, error);
}

// The entries of `folder` whose names begin with `begin` and end with `end`. Continues after an
// entry that cannot be read.
std::vector<fs::path> entries_named(const fs::path& folder, std::string_view begin,
                                    std::string_view end) {
  std::error_code error;
  std::vector<fs::path> found;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.starts_with(begin) && name.ends_with(end)) found.push_back(it->path());
  }
  return found;
}

// The step of "checkpoint-5.previous", which is the only one of its step while a writer is about to
// replace it, or if it was killed there.
std::optional<int64_t> step_of_previous(const std::string& name) {
  const std::string_view suffix = internal::kPrevious;
  if (!name.ends_with(suffix)) return std::nullopt;
  return step_of_name(name.substr(0, name.size() - suffix.size()));
}

void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  for (const fs::path& path : entries_named(folder, kPrefix, kLeftover))
    fs::remove_all(path, error);
  for (const fs::path& path : entries_named(folder, kPrefix, internal::kPrevious)) {
    const auto step = step_of_previous(path.filename());
    if (!step) continue;
    const fs::path whole = checkpoint_of_step(folder, *step);
    if (fs::exists(fs::symlink_status(whole, error)))
      fs::remove_all(path, error);
    else
      fs::rename(path, whole, error);
  }
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
  std::set<int64_t> steps;
  for (const fs::path& path : entries_named(folder, kPrefix, "")) {
    const std::string name = path.filename();
    const auto whole = step_of_name(name), step = whole ? whole : step_of_previous(name);
    if (step && checkpoint_exists(checkpoint_of_step(folder, *step))) steps.insert(*step);
  }
  return {steps.begin(), steps.end()};
}

std::optional<int64_t> linked_step(const fs::path& folder, const char* name) {
  const fs::path link = folder / name;
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  if (!error) return step_of_name(target.filename());
  constexpr size_t kLongest = 64;  // of a file that let_mean() writes
  if (!fs::is_regular_file(link, error)) return std::nullopt;
  std::string text(kLongest, '\0');
  std::ifstream file(link, std::ios::binary);
  file.read(text.data(), kLongest);
  text.resize(static_cast<size_t>(file.gcount()));
  return text.ends_with('\n') ? step_of_name(text.substr(0, text.size() - 1)) : std::nullopt;
}

void remove_trials(const fs::path& folder) noexcept {
  std::error_code error;
  for (const fs::path& path : entries_named(folder, kTrial, "")) fs::remove_all(path, error);
}

void try_series(const fs::path& folder) {
  const fs::path name = folder / (kTrial + internal::new_attempt());
  const fs::path fresh = name.string() + kLeftover;
  try {
    std::error_code error;
    fs::create_directory(fresh, error);
    if (error) throw system_error("cannot write " + fresh.string(), error.value());
    write_file_aside(fresh / "file", "trial");
    internal::put_in_place(fresh, name);
    let_mean(name, kLastCheckpoint, "file");
  } catch (...) {
    std::error_code ignored;
    for (const fs::path& left : {fresh, name}) fs::remove_all(left, ignored);
    throw;
  }
  std::error_code error;
  fs::remove_all(name, error);
  if (error) throw system_error("cannot remove " + name.string(), error.value());
}

void write_checkpoint_of_step(const fs::path& folder, int64_t step, const Checkpoint& checkpoint,
                              const SeriesOptions& options) {
  write_checkpoint(checkpoint_of_step(folder, step), checkpoint);
  continue_series(folder, step, options);
}

void continue_series(const fs::path& folder, int64_t step, const SeriesOptions& options) {
  remove_leftovers(folder);
  const fs::path path = checkpoint_of_step(folder, step);
  if (options.best) let_mean(folder, kBestCheckpoint, path.filename());
  let_mean(folder, kLastCheckpoint, path.filename());
  std::set<int64_t> kept{step};
  if (const auto best = linked_step(folder, kBestCheckpoint)) kept.insert(*best);
  for (const int64_t surplus : surplus_checkpoints(checkpoint_steps(folder), options.limit, kept))
    remove_whole(checkpoint_of_step(folder, surplus));
}

}  // namespace lockstep::inline v0
