#include "lockstep/gpu_check/ranks.h"

#include <ATen/ops/ones.h>
#include <signal.h>

#include <algorithm>
#include <optional>

#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/choose.h"
#include "lockstep/gpu_check/rank_jobs.h"
#include "lockstep/testing/lone_ranks.h"

namespace lockstep::inline v0::gpu_check {
namespace {

std::string in_words(int end) {
  if (end > 0) return "signal " + std::to_string(end);
  return "exit code " + std::to_string(-end);
}

int end_of(const testing::LoneRank& rank) {
  if (rank.was_stopped) return SIGSTOP;
  return rank.status.signal != 0 ? rank.status.signal : -rank.status.exit_code;
}

testing::LoneOptions lone_options(const Options& options, const JobSpec& spec,
                                  const std::string& part) {
  testing::LoneOptions lone;
  lone.deadline = spec.deadline;
  lone.name = spec.job + "/" + spec.engine;
  lone.arguments = options.arguments({"--part", part, "--job", spec.job, "--engine", spec.engine});
  lone.variables = spec.variables;
  lone.variables["LOCKSTEP_GPU_CHECK_TIMEOUT"] =
      std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(spec.timeout).count());
  return lone;
}

// The rank itself.
void work(const Options& options) {
  const Rows rows(options.part);
  const auto timeout = env_int(process_env(), "LOCKSTEP_GPU_CHECK_TIMEOUT").value_or(30'000);
  // What a process takes to come to its device is not to count as lateness.
  const auto local_rank = env_int(process_env(), "LOCAL_RANK").value_or(0);
  const auto device = device::choose_device(kDevice, static_cast<int>(local_rank));
  (void)at::ones({1}, at::TensorOptions(device)).item<float>();
  std::optional<Communicator> comm;
  try {
    comm.emplace(init({.backend = options.engine,
                       .timeout = std::chrono::milliseconds(timeout),
                       .device = kDevice}));
  } catch (const InvalidArgument& error) {
    rows.skipped(options.engine, std::string("not available: ") + error.what());
    return;
  } catch (const LaunchError& error) {
    rows.skipped(options.engine, std::string("not available: ") + error.what());
    return;
  }
  jobs().at(options.job)(*comm, options, rows);
}

}  // namespace

const std::map<std::string, Job>& jobs() {
  static const std::map<std::string, Job> all = {{"share-memory", share_memory},
                                                 {"operations", operations},
                                                 {"small-operations", small_operations},
                                                 {"train", train_as_one},
                                                 {"killed", rank_is_killed},
                                                 {"stopped", rank_stops},
                                                 {"mismatch", rank_calls_another},
                                                 {"share-device", share_device}};
  return all;
}

std::string title(const JobSpec& spec) {
  if (!spec.name.empty()) return spec.name;
  const bool on_device = spec.engine == "nccl" || spec.engine == "peer";
  return (on_device ? spec.engine : "staged:" + spec.engine) + ", " + std::to_string(spec.size) +
         (spec.size == 1 ? " rank" : " ranks");
}

bool on_ranks(const Options& options, const Rows& rows, const JobSpec& spec) {
  const std::string name = title(spec);
  bool refused = false;
  rows.guard(name, [&] {
    const std::vector<testing::LoneRank> ranks =
        testing::run_lone_ranks(spec.size, [] {}, lone_options(options, spec, rows.part()));
    for (size_t r = 0; r < ranks.size(); ++r) {
      const Output output = take_rows(ranks[r].output);
      for (const Row& row : output.rows) {
        refused = refused || (row.outcome == Outcome::kSkipped && row.check == spec.engine);
        if (r != 0 && row.outcome != Outcome::kFailed) continue;
        std::string check = name;
        if (row.check != spec.engine) check += ": " + row.check;
        if (r != 0) check += " (rank " + std::to_string(r) + ")";
        rows.add(check, row.outcome, row.text, row.figures);
      }
      const auto it = spec.ends.find(static_cast<int>(r));
      const int expected = refused || it == spec.ends.end() ? 0 : it->second;
      const int end = end_of(ranks[r]);
      if (end == expected && !ranks[r].timed_out) continue;
      rows.failed(
          name + " (rank " + std::to_string(r) + ")",
          (ranks[r].timed_out ? "was not over in time"
                              : "ended with " + in_words(end) + ", not " + in_words(expected)) +
              ": " + last_words(output.rest));
    }
  });
  return !refused;
}

int run_rank(const Options& options) {
  const JobSpec spec{.job = options.job, .engine = options.engine};
  const auto size = env_int(process_env(), "WORLD_SIZE");
  if (!testing::in_lone_rank() || !size)
    throw InvalidArgument("--job is for ranks that this program starts itself");
  testing::run_lone_ranks(
      static_cast<int>(*size), [&] { work(options); }, lone_options(options, spec, options.part));
  return 1;  // not reached: a rank ends there
}

std::vector<JobSpec> specs(const Options& options, const std::string& job) {
  std::vector<JobSpec> all;
  const auto add = [&](const std::string& engine, int size) {
    JobSpec spec;
    spec.job = job;
    spec.engine = engine;
    spec.size = size;
    all.push_back(spec);
  };
  // That of the devices which the host plays joins threads alone.
  add("nccl", devices_are_played() ? 1 : std::clamp(visible_device_count(), 1, options.ranks));
  add("shm", options.ranks);
  add("peer", options.ranks);
  return all;
}

}  // namespace lockstep::inline v0::gpu_check
