#include "lockstep/cli/engine/train_command.h"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/on_root.h"
#include "lockstep/cli/engine/train_arguments.h"
#include "lockstep/cli/engine/train_summary.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/output.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/train/image_data.h"
#include "lockstep/train/image_training.h"

namespace lockstep::engine {
namespace {

// One rank, from joining the job to the summary.
int run_rank(const TrainPlan& plan, const TrainArguments& arguments) {
  provide_data(plan);
  const TrainConfig& config = plan.config;
  const std::chrono::duration<double> timeout(config.timeout);
  Communicator comm =
      init({.backend = config.backend,
            .timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(timeout)});
  const TrainResult result = train_images(
      comm, config,
      {.resume = arguments.resume, .terminal = find_terminal(STDERR_FILENO, process_env())});
  const std::string& backend = comm.capabilities().backend;
  on_root(comm, [&] {
    write_json(arguments.json, nlohmann::ordered_json::parse(to_json(result, config, backend)));
    if (!arguments.quiet) {
      std::cout << train_summary({.result = result,
                                  .config = config,
                                  .backend = backend,
                                  .built_in = plan.built_in,
                                  .example = example_file(config).string(),
                                  .command = lockstep_command()})
                << std::flush;
    }
  });
  return 0;
}

int start_ranks(const TrainPlan& plan, const Arguments& arguments) {
  launch::LaunchOptions options;
  options.command = {"lockstep", "train"};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  options.program = self().string();
  options.nproc = static_cast<int>(plan.config.nproc);
  return launch::launch(options).exit_code;
}

// The run has begun: what fails now failed as a run, whatever the exception says; but for the
// input, which a rank of another launcher is the first to see.
int run_rank_guarded(const TrainPlan& plan, const TrainArguments& arguments) {
  try {
    return run_rank(plan, arguments);
  } catch (const CheckpointError& error) {
    throw Error(error.what());
  }
}

}  // namespace

int train_command(const Arguments& arguments) {
  return run_guarded("train", [&] {
    const TrainArguments parsed = parse_train_arguments(arguments);
    const auto job = launch::read_job_environment(process_env());
    if (job.launcher != launch::Launcher::kNone) {
      const TrainPlan plan = make_train_plan(parsed, job.world_size);
      if (job.rank == 0) {
        check_output_folder(plan.config.output);
        check_output_file(parsed.json);
      }
      return run_rank_guarded(plan, parsed);
    }
    const TrainPlan plan = make_train_plan(parsed, std::nullopt);
    const OutputFolder output = check_train_input(plan, parsed);
    if (plan.config.nproc == 1) return run_rank_guarded(plan, parsed);
    return start_ranks(plan, arguments);
  });
}

}  // namespace lockstep::engine
