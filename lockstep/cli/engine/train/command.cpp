#include "lockstep/cli/engine/train/command.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lockstep/checkpoint/on_root.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/cli/engine/train/arguments.h"
#include "lockstep/cli/engine/train/auto_mesh.h"
#include "lockstep/cli/engine/train/stop.h"
#include "lockstep/cli/engine/train/summary.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/output.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/error_note.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recover/reunion.h"
#include "lockstep/train/run_claim.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/stop_signals.h"
#include "lockstep/train/straggler.h"

namespace lockstep::inline v0::engine {
namespace {

// The agent reports once a failure that is the same on every rank, or that is another rank's
// consequence.
void leave_to_agent(const std::exception& error, const StartedRun& run) {
  const std::string full = full_disk_text(run, error);
  if (!full.empty()) {
    if (launch::leave_error_note({.message = "lockstep train: " + full, .complete = true},
                                 process_env()))
      throw AlreadyReported{.exit_code = 1};
    throw Error(full);
  }
  if (dynamic_cast<const Evicted*>(&error) != nullptr) {
    write_all(STDERR_FILENO, std::string("lockstep train: ") + error.what() + "\n");
    launch::leave_error_note({.message = error.what()}, process_env());
    throw AlreadyReported{.exit_code = Evicted::kExitCode};
  }
  if (dynamic_cast<const PeerLost*>(&error) != nullptr &&
      launch::leave_error_note({.message = error.what(), .consequence = true}, process_env()))
    throw AlreadyReported{.exit_code = 1};
}

// The devices of all ranks, each once; "" on the CPU. Collective.
std::string devices_of(Communicator& comm) {
  if (comm.device().is_cpu()) return "";
  const at::Tensor numbers = comm.all_gather(at::tensor({int64_t{comm.device().index()}}));
  const int64_t* first = numbers.const_data_ptr<int64_t>();
  std::vector<std::string> names;
  for (const int64_t number : std::set<int64_t>(first, first + numbers.numel()))
    names.push_back(at::Device(comm.device().type(), static_cast<at::DeviceIndex>(number)).str());
  return joined(names);
}

void train_as_rank(Communicator& comm, const TrainPlan& plan, const TrainArguments& arguments,
                   const StartedRun& run) {
  const TrainConfig& config = plan.config;
  const TrainResult result = train_recipe(comm, config,
                                          {.resume = arguments.resume,
                                           .terminal = find_terminal(STDERR_FILENO, process_env()),
                                           .record = arguments.record});
  const std::string& backend = comm.capabilities().backend;
  const std::string devices = devices_of(comm);
  on_root(comm, [&] {
    write_json(arguments.json, nlohmann::ordered_json::parse(to_json(result, config, backend)));
    if (result.stopped_by != 0) {
      write_all(STDERR_FILENO, saved_line(run, result.stopped_by, result.state.step));
    } else if (!arguments.quiet) {
      std::cout << train_summary({.result = result,
                                  .config = config,
                                  .backend = backend,
                                  .built_in = plan.built_in,
                                  .command = lockstep_command(),
                                  .compares = std::filesystem::exists(tools_program()),
                                  .devices = devices})
                << std::flush;
    }
  });
}

// Runs one rank from joining the job to the summary. The run has begun, so an error now is a failed
// run, whatever its type; except for errors of the input, which a rank of another launcher is the
// first to see.
int run_rank(const TrainPlan& plan, const TrainArguments& arguments, const StartedRun& run) {
  try {
    provide_data(plan);
    const std::chrono::duration<double> timeout(plan.config.timeout);
    Communicator comm =
        init({.backend = plan.config.backend,
              .timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(timeout),
              .device = plan.config.device});
    try {
      // They are kept to the end of this process, because a scheduler may signal more than once.
      const StopSignals signals;
      train_as_rank(comm, plan, arguments, run);
    } catch (const std::exception& error) {
      // The others still find this rank meanwhile, so that its own account comes first.
      leave_to_agent(error, run);
      throw;
    }
  } catch (const CheckpointError& error) {
    throw Error(error.what());
  } catch (...) {
    recover::rethrow_with_note_of_device();
  }
  return 0;
}

int start_ranks(const TrainPlan& plan, const TrainArguments& arguments, const StartedRun& run) {
  launch::LaunchOptions options;
  options.command = {"lockstep", "train"};
  options.command.insert(options.command.end(), run.arguments.begin(), run.arguments.end());
  if (!plan.chosen.empty()) {  // options that come later win
    const Arguments layout = options_of_layout(plan.config);
    options.command.insert(options.command.end(), layout.begin(), layout.end());
  }
  options.program = self().string();
  options.nproc = static_cast<int>(plan.config.nproc);
  options.on_failure = arguments.on_failure;
  options.max_restarts = arguments.max_restarts;
  options.spare_ranks = arguments.spare_ranks;
  options.run_id = to_hex(random_bytes(8));  // a restarted run knows its checkpoints by it
  const int code = launch::launch(options).exit_code;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    if (code == 128 + signal) launch::write_last_words(STDERR_FILENO, stopped_line(run, signal));
  }
  return code;
}

}  // namespace

int train_command(const Arguments& arguments) {
  return run_guarded("train", [&] {
    TrainArguments parsed = parse_train_arguments(arguments);
    const auto job = launch::job_environment();
    const bool alone = job.launcher == launch::Launcher::kNone;
    const bool asked_to_resume = parsed.resume;
    // Ranks that were started again continue from their checkpoint, on any number. Where single
    // ranks are replaced, the others may be in the midst of the run, and rank 0 decides for all.
    if (!alone && !job.replaces && goes_on_by_itself(parsed)) parsed.resume = parsed.goes_on = true;
    const TrainPlan plan =
        make_train_plan(parsed, alone ? std::nullopt : std::optional(job.world_size));
    if (const std::string finished = finished_text(plan); asked_to_resume && !finished.empty()) {
      const RunFolder folder{plan.config.output};
      if (!alone && job.rank != 0) return 0;
      check_result_files({parsed.json});
      if (std::filesystem::exists(folder.result()))
        write_json(parsed.json, nlohmann::ordered_json::parse(read_small_file(folder.result())));
      if (!parsed.quiet) std::cout << finished << std::flush;
      return 0;
    }
    if (!plan.chosen.empty() && !parsed.quiet && (alone || job.rank == 0))
      write_all(STDERR_FILENO, plan.chosen + "\n");
    // A command that starts the ranks has the restarts itself.
    if (alone)
      check_eviction(plan.config.evict_stragglers, parsed.max_restarts);
    else
      check_eviction(plan.config.evict_stragglers, process_env());
    if (alone ? parsed.on_failure == launch::OnFailure::kReplace : job.replaces)
      check_replacement(plan, parsed);
    if (alone ? parsed.on_failure == launch::OnFailure::kShrink : job.shrinks)
      check_shrinking(plan, parsed);
    const StartedRun run{.output = plan.config.output,
                         .arguments = arguments,
                         .resumed = parsed.resume,
                         .command = lockstep_command()};
    if (!alone) {
      if (job.rank == 0) {
        const RunClaim tried(plan.config.output, process_env());
        check_result_files({parsed.json, parsed.record});
      }
      return run_rank(plan, parsed, run);
    }
    const bool here = plan.config.nproc == 1 && parsed.max_restarts == 0;
    std::optional<StopOnSignal> stop;
    if (here) stop.emplace(run);
    const OutputFolder output = check_train_input(plan, parsed);
    if (here) check_result_files({parsed.json, parsed.record});
    return here ? run_rank(plan, parsed, run) : start_ranks(plan, parsed, run);
  });
}

}  // namespace lockstep::inline v0::engine
