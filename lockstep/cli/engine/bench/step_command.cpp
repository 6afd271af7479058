#include "lockstep/cli/engine/bench/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/bench/step.h"
#include "lockstep/bench/step_figures.h"
#include "lockstep/bench/step_rank.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/device/choose.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/mesh/shared_copies.h"

namespace lockstep::inline v0::engine {
using namespace bench;
namespace {

struct StepArguments {
  bench::StepOptions measured;
  std::string json;
  std::string svg;
  std::vector<int> copies;  // the mesh's
  std::string turns;        // a contender's process: its pipes to the parent
};

int launch_processes(int nproc, const std::vector<std::string>& command) {
  launch::LaunchOptions options;
  options.command = command;
  options.nproc = nproc;
  options.threads_per_rank = 1;
  options.pin = false;  // all contenders are alike, as under torchrun
  return launch::launch(options).exit_code;
}

StepArguments parse_step_arguments(const Arguments& arguments) {
  CLI::App app(
      "Measures whole training steps on random data: each contender is a job of its own, and they "
      "take turns in alternating rounds.",
      "lockstep bench step");
  StepArguments result;
  std::string strategies = "ddp,independent,pytorch-ddp";
  app.add_option("--model", result.measured.model, joined(step_models()) + " [simple-cnn]")
      ->type_name("NAME");
  app.add_option(
         "--strategy", strategies,
         joined(step_strategies()) +
             " [ddp,independent,pytorch-ddp]; times are compared with the first one's. "
             "independent: as many processes that do not communicate, what the machine can "
             "do at most; in-step: the same, but they wait for each other once a step, what "
             "a method that averages in every step can do at most")
      ->type_name("NAME,...");
  const auto* nproc = app.add_option("--nproc", result.measured.nproc,
                                     "processes of a contender [2, or as many as --mesh has]");
  app.add_option("--mesh", result.measured.mesh,
                 "such as data=2,shard=2: who shares a copy of the parameters, with zero3")
      ->type_name("AXIS=N,...");
  const auto* batch =
      app.add_option("--batch", result.measured.batch,
                     "samples of a process's step [64; bert: 16; linear: 8; lm: 4]");
  app.add_option("--threads", result.measured.threads, "of each process [1]");
  app.add_option("--device", result.measured.device,
                 "what all contenders compute on; a step ends when its loss is read [cpu]")
      ->type_name("cpu|cuda|auto");
  app.add_option("--optimizer", result.measured.optimizer,
                 "Lockstep's contenders: fused, or torch for torch::optim [fused]")
      ->type_name("fused|torch");
  app.add_option("--rounds", result.measured.rounds, "how often the contenders take turns [7]");
  app.add_option("--turn-ms", result.measured.turn_ms, "how long a turn is, about [1500]");
  add_peers(app, result.measured.peers, "for the pytorch and deepspeed strategies");
  app.add_option("--json", result.json, "write the rows to this file")->type_name("FILE");
  app.add_option("--svg", result.svg, "draw where a step's time goes to this file")
      ->type_name("FILE");
  app.add_option("--turns", result.turns)->group("");
  cli::add_example(app, {"lockstep bench step --model bert-mini --nproc 2"});
  parse(app, arguments);
  check_choice("model", result.measured.model, step_models());
  result.measured.strategies =
      parse_choices("--strategy", "strategy", strategies, step_strategies());
  if (batch->empty()) result.measured.batch = default_batch(result.measured.model);
  if (result.measured.batch < 1 || result.measured.nproc < 1 || result.measured.threads < 1 ||
      result.measured.rounds < 1 || !(result.measured.turn_ms > 0)) {
    throw InvalidArgument(
        "--batch, --nproc, --threads, --rounds and --turn-ms must be 1 or more each");
  }
  if (!result.measured.mesh.empty()) {
    if (const int ranks = ranks_of(result.measured.mesh); nproc->empty() && ranks > 1)
      result.measured.nproc = ranks;
    result.copies = shared_copies(result.measured.mesh, result.measured.nproc);
  }
  (void)device::choose_device(result.measured.device, 0, "--device");
  if (result.measured.optimizer != "fused" && result.measured.optimizer != "torch")
    throw InvalidArgument("--optimizer is '" + result.measured.optimizer +
                          "'; choose fused or torch");
  return result;
}

}  // namespace

int bench_step(const Arguments& arguments) {
  return run_guarded("bench step", [&] {
    // Internal: "--launches --nproc N -- COMMAND" starts a contender's processes.
    if (arguments.size() > 4 && arguments[0] == "--launches") {
      return launch_processes(std::stoi(arguments[2]), {arguments.begin() + 4, arguments.end()});
    }
    StepArguments parsed = parse_step_arguments(arguments);
    if (!parsed.turns.empty()) {
      run_step_rank({.model = parsed.measured.model,
                     .strategy = parsed.measured.strategies.at(0),
                     .batch = parsed.measured.batch,
                     .threads = parsed.measured.threads,
                     .fused = parsed.measured.optimizer == "fused",
                     .copies = parsed.copies,
                     .device = parsed.measured.device,
                     .turns = parsed.turns});
      return 0;
    }
    check_result_files({parsed.json, parsed.svg});
    leave_out_absent(parsed.measured);
    if (parsed.measured.strategies.empty()) throw InvalidArgument("no strategy is left to measure");
    const std::vector<Row> rows = measure_steps(parsed.measured, self().string());
    std::cout << step_table(rows) << std::flush;
    write_json(parsed.json, rows);
    if (!parsed.svg.empty()) write_output_file(parsed.svg, step_svg(rows));
    return 0;
  });
}

}  // namespace lockstep::inline v0::engine
