#include "lockstep/cli/engine/compare/parallelism.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/bench/program_experiment.h"
#include "lockstep/cli/engine/calibrate/measure.h"
#include "lockstep/cli/engine/compare/parallelism_rank.h"
#include "lockstep/cli/engine/compare/parallelism_report.h"
#include "lockstep/cli/engine/compare/step_planner.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/plan/calibration/calibration.h"
#include "lockstep/report/run_report.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

// The job that is no way: it measures the machine.
constexpr const char* kMachine = "this machine";

// Turns "data=4 zero 1" into a file's name, "data-4-zero-1".
std::string file_name_of(const std::string& way) {
  std::string name = way;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  return name;
}

DividedWay way_called(const std::string& name, const DividedSettings& settings) {
  for (const DividedWay& way : plan_divided(settings).ways)
    if (way.name == name) return way;
  throw InvalidArgument("there is no way '" + name + "' on " + std::to_string(settings.nproc) +
                        " ranks; call compare --parallelism without --way");
}

// A rank of the job that measures what the steps are planned with.
void measure_machine(const ParallelismArguments& arguments) {
  const DividedPlan plan = plan_divided(arguments.settings);
  const bench::MachineFigures here =
      measure_this_host(models_to_measure(plan.ways, arguments.settings));
  if (launch::read_job_environment(process_env()).rank == 0)
    write_file_aside(arguments.record, plan::to_json(plan::calibration_of(here.measured)));
}

// A run's first process starts its ranks, which have the same arguments.
int run_way(const ParallelismArguments& arguments) {
  const DividedSettings& settings = arguments.settings;
  std::optional<DividedWay> way;  // none: the machine
  if (arguments.way != kMachine) way = way_called(arguments.way, settings);
  if (launch::read_job_environment(process_env()).launcher != launch::Launcher::kNone) {
    if (way)
      run_divided_rank(*way, settings, arguments.record);
    else
      measure_machine(arguments);
    return 0;
  }
  launch::LaunchOptions options;
  options.command = {"lockstep", "compare"};
  options.command.insert(options.command.end(), arguments.given.begin(), arguments.given.end());
  options.program = self().string();
  options.nproc = settings.nproc;
  options.threads_per_rank = settings.threads;
  options.pin = settings.nproc <= usable_cpu_count();
  return launch::launch(options).exit_code;
}

// Plans every row's step on the machine.
void plan_steps(std::vector<DividedRow>& rows, const StepPlanner& planner) {
  for (DividedRow& row : rows) {
    try {
      row.planned_ms.push_back(planner.step_ms(row.way));
    } catch (const InvalidArgument& error) {
      write_all(STDERR_FILENO, "not planned: " + row.way.name + ": " + error.what() + "\n");
    }
  }
}

int measure_ways(const ParallelismArguments& arguments, DividedPlan plan) {
  bench::Machine machine = bench::this_machine();
  DividedComparison found{.settings = arguments.settings,
                          .rows = {},
                          .left_out = std::move(plan.left_out),
                          .processor = std::move(machine.processor),
                          .date = std::move(machine.date),
                          .processors = machine.processors};
  for (const LeftOutWay& left : found.left_out)
    write_all(STDERR_FILENO, "left out: " + left.name + ": " + left.why + "\n");
  for (DividedWay& way : plan.ways) {
    const DividedTheory theory = theory_of(way, arguments.settings);
    const double bytes = planned_bytes(way, arguments.settings);
    found.rows.push_back(
        {.way = std::move(way), .theory = theory, .planned_bytes = bytes, .runs = {}});
  }
  if (!arguments.hardware.empty())
    plan_steps(found.rows, {plan::find_calibration(arguments.hardware), arguments.settings});
  const fs::path output = arguments.common.output, runs = output / "parallelism-runs";
  bench::ProgramExperiment experiment = arguments.common.experiment();
  experiment.rounds = arguments.rounds;
  experiment.files = {"parallelism.json", "parallelism.html", "memory.svg",
                      "memory_zh.svg",    "time.svg",         "time_zh.svg"};
  const auto add_job = [&](const std::string& name, auto keep,
                           std::function<void(const std::string&)> fail) {
    const fs::path stem = runs / file_name_of(name), record = stem.string() + ".json";
    std::vector<std::string> command{self().string(), "compare"};
    command.insert(command.end(), arguments.given.begin(), arguments.given.end());
    command.insert(command.end(), {"--way", name, "--record", record.string()});
    experiment.jobs.push_back(
        {.name = name,
         .command = std::move(command),
         .nproc = arguments.settings.nproc,
         .log = stem.string() + ".log",
         .result = record,
         .read = [keep, source = record.string()](const std::string& text,
                                                  double) { return keep(text, source); },
         .failed = std::move(fail)});
  };
  if (arguments.calibrate)
    add_job(kMachine,
            [&found](const std::string& text, const std::string& source) {
              const plan::Calibration machine = plan::calibration_from_json(text, source);
              plan_steps(found.rows, {machine, found.settings});
              return fixed(machine.machine.float32 / 1e9, 1) + " GFLOP/s of each rank";
            },
            {});
  for (DividedRow& row : found.rows) {
    const auto keep = [&row](const std::string& text, const std::string& source) {
      row.runs.push_back(parse_divided_record(text, source));
      return fixed(row.step_ms(), 1) + " ms a step, loss " + fixed(row.runs.back().last_loss, 4);
    };
    add_job(row.way.name, keep, [&row](const std::string& why) {
      row.failure = why;
      row.runs.clear();
    });
  }
  experiment.write = [&] {
    const auto json = to_json(found);
    write_json((output / "parallelism.json").string(), json);
    write_json(arguments.common.json, json);
    write_file_aside(output / "parallelism.html", divided_page(found));
    for (const auto& [name, picture] : {std::pair{"memory", divided_memory_picture(found)},
                                        {"time", divided_time_picture(found)}}) {
      const fs::path file = output / (std::string(name) + ".svg");
      write_file_aside(file, picture.en);
      write_file_aside(in_chinese(file), picture.zh);
    }
  };
  experiment.alike = false;  // each is another way
  experiment.summary = [&] {
    return divided_table(found) + "\nPage: " + (output / "parallelism.html").string() +
           ", figures: " + (output / "parallelism.json").string();
  };
  return bench::run_programs(experiment);
}

}  // namespace

ParallelismArguments parse_parallelism_arguments(const Arguments& arguments) {
  CLI::App app(
      "Trains one language model on random words by every way of dividing it, and by three "
      "products of ways, all on the same number of processes, and shows memory, bytes sent, "
      "bubble and time beside theory.",
      "lockstep compare --parallelism");
  ParallelismArguments result{.given = arguments};
  DividedSettings& of = result.settings;
  bool parallelism = false;
  app.add_flag("--parallelism", parallelism, "this comparison")->required();
  app.add_option("--nproc", of.nproc, "ranks of each way [4]");
  app.add_option("--steps", of.steps, "that are timed, after two to warm up [10]");
  app.add_option("--rounds", result.rounds, "in which the ways take turns [2]")
      ->check(CLI::Range(1, 100));
  app.add_option("--model", of.model, joined(lm_preset_names()) + " [tiny]")->type_name("NAME");
  app.add_option("--layers", of.layers, "of the model [the preset's]");
  app.add_option("--hidden", of.hidden,
                 "of the model; its MLP is four times as wide then [the preset's]");
  app.add_option("--heads", of.heads, "of the model [the preset's]");
  app.add_option("--vocabulary", of.vocabulary, "words [2048]");
  app.add_option("--batch", of.batch, "sequences of a step, of all ranks together [8]");
  app.add_option("--length", of.length, "tokens of a sequence [128]");
  app.add_option("--hardware", result.hardware,
                 "a machine whose step times are planned beside those measured: the file of "
                 "lockstep plan --calibrate, or a name of lockstep plan --list [none]")
      ->type_name("MACHINE");
  app.add_flag("--calibrate", result.calibrate,
               "measure this machine in each round, as lockstep plan --calibrate does with this "
               "model, and plan the step times with it; not with --hardware");
  result.common.add_to(app, "a run", "parallelism.json");
  app.add_option("--way", result.way)->group("");
  app.add_option("--record", result.record)->group("");
  cli::add_example(app, {"lockstep compare --parallelism --nproc 4"});
  parse(app, arguments);
  refuse_zeros(app, {"--layers", "--hidden", "--heads"});
  if (result.calibrate && !result.hardware.empty())
    throw InvalidArgument(
        "--hardware names a machine and --calibrate measures this one; give one of them");
  result.common.check(app);
  check_settings(of);
  return result;
}

int compare_parallelism(const Arguments& arguments) {
  return run_guarded("compare", [&] {
    ParallelismArguments parsed = parse_parallelism_arguments(arguments);
    parsed.settings.threads = static_cast<int>(parsed.common.threads_of(parsed.settings.nproc));
    if (!parsed.way.empty()) return run_way(parsed);
    DividedPlan plan = plan_divided(parsed.settings);
    if (plan.ways.empty())
      throw InvalidArgument("no way fits; the first: " + plan.left_out.front().why);
    const auto claim = parsed.common.begin(parsed.settings.nproc);
    return measure_ways(parsed, std::move(plan));
  });
}

}  // namespace lockstep::inline v0::engine
