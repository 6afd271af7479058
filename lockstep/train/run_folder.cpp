#include "lockstep/train/run_folder.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/secret.h"
#include "lockstep/report/run_report.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::inline v0 {
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

std::vector<std::string> parts_of(const RunFolder& folder) {
  std::vector<std::string> parts;
  for (const fs::path& part :
       {folder.checkpoints(), folder.metrics(), folder.config(), folder.result(), folder.report(),
        in_chinese(folder.report()), folder.memory(), in_chinese(folder.memory()),
        folder.tensorboard(), folder.trace(), folder.job(), folder.requeue()})
    parts.push_back(part.filename().string());
  return parts;
}

namespace {

constexpr const char* kLaunchersJob = "job";  // in job.json

// A job that a launcher or a scheduler may start again, as it calls it.
struct NamedJob {
  const char* key;     // in job.json
  std::string name;    // "": none
  bool again = false;  // this is not its first start
};

// What can start this process again, the innermost first: a scheduler's job may hold several of
// a launcher's. LOCKSTEP_GENERATION counts every start of all ranks, for whatever reason; the
// others count failures alone, or what happened to one rank. "none" is torchrun's where no user has
// named the run: any job's.
std::vector<NamedJob> jobs_of(const EnvLookup& env) {
  const auto job = [&env](const char* key, const char* name,
                          std::initializer_list<const char*> counts) {
    const std::string id = env(name).value_or("");
    NamedJob named{.key = key, .name = id == "none" ? "" : id};
    for (const char* count : counts)
      named.again = named.again || parse_int(env(count).value_or(""), 1, INT64_MAX).has_value();
    return named;
  };
  std::vector<NamedJob> jobs = {
      job(kLaunchersJob, "TORCHELASTIC_RUN_ID",
          {"LOCKSTEP_GENERATION", "TORCHELASTIC_RESTART_COUNT", "LOCKSTEP_RESTART_COUNT"}),
      job("slurm_job", "SLURM_JOB_ID", {"SLURM_RESTART_COUNT"})};
  std::erase_if(jobs, [](const NamedJob& each) { return each.name.empty(); });
  return jobs;
}

// An id may be any bytes, and JSON may not.
std::string shown_id(const std::string& id) {
  const bool plain = std::all_of(id.begin(), id.end(), [](char c) { return c >= ' ' && c < 127; });
  return plain ? id : "hex-" + to_hex(id);
}

}  // namespace

std::optional<std::string> move_former_run_aside(const RunFolder& folder) {
  return move_former_run_aside(folder.root, parts_of(folder));
}

std::string job_id(const EnvLookup& env) {
  const std::vector<NamedJob> jobs = jobs_of(env);
  return jobs.empty() ? "" : shown_id(jobs.front().name);
}

std::string launcher_job_id(const EnvLookup& env) {
  const std::vector<NamedJob> jobs = jobs_of(env);
  return jobs.empty() || std::string_view(jobs.front().key) != kLaunchersJob
             ? ""
             : shown_id(jobs.front().name);
}

bool left_by_this_job(const fs::path& root, const EnvLookup& env) {
  const fs::path path = RunFolder{root}.job();
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const std::vector<NamedJob> jobs = jobs_of(env);
  return json.is_object() && std::any_of(jobs.begin(), jobs.end(), [&json](const NamedJob& job) {
           const auto left = json.find(job.key);
           return job.again && left != json.end() && *left == shown_id(job.name);
         });
}

void name_job(const fs::path& root, const EnvLookup& env) {
  nlohmann::json json;
  for (const NamedJob& job : jobs_of(env)) json[job.key] = shown_id(job.name);
  if (!json.empty()) write_file_aside(RunFolder{root}.job(), json.dump() + "\n");
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

namespace {

// Of a series whose link `best` a copy has left out: what its latest checkpoint says of it.
fs::path best_of(const fs::path& series) {
  const fs::path best = series / kBestCheckpoint, last = checkpoint_at(series / kLastCheckpoint);
  std::error_code error;
  if (fs::exists(fs::symlink_status(best, error)) || !fs::exists(last / "trainer.json", error))
    return checkpoint_at(best);
  try {
    const std::string source = (last / "trainer.json").string();
    const TrainerState state = trainer_state_from_json(read_small_file(source), source);
    const fs::path named = checkpoint_of_step(series, state.best_step);
    return checkpoint_exists(named) ? named : best;
  } catch (const CheckpointError&) {
    return best;
  }
}

}  // namespace

std::vector<fs::path> checkpoints_in(const fs::path& path) {
  const fs::path plain = path.has_filename() ? path : path.parent_path();
  std::vector<fs::path> found{plain.filename() == kBestCheckpoint ? best_of(plain.parent_path())
                                                                  : checkpoint_at(path)};
  for (const fs::path& series : {RunFolder{path}.checkpoints(), path}) {
    found.push_back(best_of(series));
    found.push_back(checkpoint_at(series / kLastCheckpoint));
  }
  return found;
}

std::optional<fs::path> find_in_run(const fs::path& path,
                                    const std::function<bool(const fs::path&)>& is_one) {
  for (const fs::path& candidate : checkpoints_in(path)) {
    if (is_one(candidate)) return candidate;
  }
  return std::nullopt;
}

fs::path checkpoint_meant(const fs::path& path) {
  return find_in_run(path, [](const fs::path& each) { return find_tensor_file(each).has_value(); })
      .value_or(path);
}

fs::path find_checkpoint(const fs::path& path) {
  if (const auto found = find_in_run(path, checkpoint_exists)) return *found;
  throw CheckpointError(
      path.string() +
      ": holds no checkpoint; give the output directory of a training run, or one of its " +
      "checkpoints");
}

}  // namespace lockstep::inline v0
