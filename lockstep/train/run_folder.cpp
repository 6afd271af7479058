#include "lockstep/train/run_folder.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/secret.h"
#include "lockstep/report/run_report.h"

namespace lockstep {
namespace fs = std::filesystem;

namespace {

// previous-N, one more than the greatest there is.
fs::path next_former(const fs::path& root) {
  int64_t last = 0;
  const std::string start = "previous-";
  std::error_code error;
  for (auto it = fs::directory_iterator(root, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(start)) continue;
    last = std::max(last, parse_int(name.substr(start.size()), 1, INT64_MAX - 1).value_or(0));
  }
  return root / (start + std::to_string(last + 1));
}

}  // namespace

std::optional<std::string> move_former_run_aside(const fs::path& root,
                                                 const std::vector<std::string>& parts) {
  const auto there = [&root](const std::string& part) {
    std::error_code ignored;
    return fs::exists(fs::symlink_status(root / part, ignored));
  };
  if (std::none_of(parts.begin(), parts.end(), there)) return std::nullopt;
  const fs::path previous = root / "previous";
  std::string text = "the former run is now in " + previous.string();
  std::error_code error;
  if (there("previous")) {
    const fs::path former = next_former(root);
    text += ", the one before it in " + former.string();
    fs::rename(previous, former, error);
  }
  if (!error) fs::create_directory(previous, error);
  for (const std::string& part : parts) {
    if (!error && there(part)) fs::rename(root / part, previous / part, error);
  }
  if (error)
    throw system_error("cannot move the former run to " + previous.string(), error.value());
  return text;
}

namespace {

std::vector<std::string> parts_of(const RunFolder& folder) {
  std::vector<std::string> parts;
  for (const fs::path& part :
       {folder.checkpoints(), folder.metrics(), folder.config(), folder.result(), folder.report(),
        in_chinese(folder.report()), folder.memory(), in_chinese(folder.memory()),
        folder.tensorboard(), folder.job(), folder.requeue()})
    parts.push_back(part.filename().string());
  return parts;
}

// "none" is torchrun's where nobody has named the run: any job's.
std::string job_of(const EnvLookup& env) {
  for (const char* name : {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}) {
    if (const auto id = env(name); id && *id != "none") return *id;
  }
  return {};
}

// An id may be any bytes, and JSON may not.
std::string printable(const std::string& id) {
  const bool plain = std::all_of(id.begin(), id.end(), [](char c) { return c >= ' ' && c < 127; });
  return plain ? id : "hex-" + to_hex(id);
}

bool started_again(const EnvLookup& env) {
  for (const char* name :
       {"TORCHELASTIC_RESTART_COUNT", "LOCKSTEP_RESTART_COUNT", "SLURM_RESTART_COUNT"}) {
    if (parse_int(env(name).value_or(""), 1, INT64_MAX)) return true;
  }
  return false;
}

}  // namespace

std::optional<std::string> move_former_run_aside(const RunFolder& folder) {
  return move_former_run_aside(folder.root, parts_of(folder));
}

bool left_by_this_job(const fs::path& root, const EnvLookup& env) {
  const std::string job = job_of(env);
  if (job.empty() || !started_again(env)) return false;
  std::ifstream file(RunFolder{root}.job());
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("job") && json["job"].is_string() &&
         json["job"].get<std::string>() == printable(job);
}

void name_job(const fs::path& root, const EnvLookup& env) {
  const std::string job = job_of(env);
  if (job.empty()) return;
  write_file_aside(RunFolder{root}.job(), nlohmann::json{{"job", printable(job)}}.dump() + "\n");
}

std::optional<std::string> make_room_for_run(const fs::path& root,
                                             const std::vector<std::string>& parts,
                                             const EnvLookup& env) {
  std::optional<std::string> moved;
  if (!left_by_this_job(root, env)) moved = move_former_run_aside(root, parts);
  name_job(root, env);
  return moved;
}

std::optional<std::string> make_room_for_run(const RunFolder& folder, const EnvLookup& env) {
  return make_room_for_run(folder.root, parts_of(folder), env);
}

fs::path find_checkpoint(const fs::path& path) {
  const RunFolder folder{path};
  for (const fs::path& candidate : {path, folder.best(), folder.last()}) {
    if (checkpoint_exists(candidate)) return candidate;
  }
  throw CheckpointError(
      path.string() +
      ": holds no checkpoint; give the output directory of a training run, or one of its " +
      "checkpoints");
}

}  // namespace lockstep
