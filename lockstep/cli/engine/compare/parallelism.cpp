#include "lockstep/cli/engine/compare/parallelism.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/bench/program_experiment.h"
#include "lockstep/cli/engine/compare/parallelism_rank.h"
#include "lockstep/cli/engine/compare/parallelism_report.h"
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
#include "lockstep/plan/estimate/estimate.h"
#include "lockstep/report/run_report.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

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

// A run's first process starts its ranks, which have the same arguments.
int run_way(const ParallelismArguments& arguments) {
  const DividedSettings& settings = arguments.settings;
  const DividedWay way = way_called(arguments.way, settings);
  if (launch::read_job_environment(process_env()).launcher != launch::Launcher::kNone) {
    run_divided_rank(way, settings, arguments.record);
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

// The time of a step of each way on a machine. Throws InvalidArgument where the machine is not known.
class StepPlanner {
 public:
  StepPlanner(const std::string& hardware, const DividedSettings& settings)
      : settings_(settings),
        machine_(plan::with_ranks(plan::find_calibration(hardware), settings.nproc)),
        stack_(machine_.stack.value_or(plan::known_stack("lockstep"))) {}

  // Nothing for a way that the planner does not know.
  std::optional<double> step_ms(const DividedWay& way) const {
    try {
      return 1000 * plan::estimate(planned_model(way, settings_), planned_layout(way, settings_),
                                   machine_.machine, stack_)
                        .step;
    } catch (const InvalidArgument& error) {
      write_all(STDERR_FILENO, "not planned: " + way.name + ": " + error.what() + "\n");
      return std::nullopt;
    }
  }

 private:
  const DividedSettings& settings_;
  plan::Calibration machine_;
  plan::Stack stack_;
};

int measure_ways(const ParallelismArguments& arguments, DividedPlan plan) {
  std::optional<StepPlanner> planner;
  if (!arguments.hardware.empty()) planner.emplace(arguments.hardware, arguments.settings);
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
    const auto planned = planner ? planner->step_ms(way) : std::nullopt;
    found.rows.push_back(
        {.way = std::move(way), .theory = theory, .runs = {}, .planned_ms = planned});
  }
  const fs::path output = arguments.common.output, runs = output / "parallelism-runs";
  bench::ProgramExperiment experiment = arguments.common.experiment();
  experiment.rounds = arguments.rounds;
  experiment.files = {"parallelism.json", "parallelism.html", "memory.svg",
                      "memory_zh.svg",    "time.svg",         "time_zh.svg"};
  for (DividedRow& row : found.rows) {
    const fs::path stem = runs / file_name_of(row.way.name), record = stem.string() + ".json";
    std::vector<std::string> command{self().string(), "compare"};
    command.insert(command.end(), arguments.given.begin(), arguments.given.end());
    command.insert(command.end(), {"--way", row.way.name, "--record", record.string()});
    const auto keep = [&row, record](const std::string& text, double) {
      row.runs.push_back(parse_divided_record(text, record.string()));
      return fixed(row.step_ms(), 1) + " ms a step, loss " + fixed(row.runs.back().last_loss, 4);
    };
    const auto fail = [&row](const std::string& why) {
      row.failure = why;
      row.runs.clear();
    };
    experiment.jobs.push_back({.name = row.way.name,
                               .command = std::move(command),
                               .nproc = arguments.settings.nproc,
                               .log = stem.string() + ".log",
                               .result = record,
                               .read = keep,
                               .failed = fail});
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
  result.common.add_to(app, "a run", "parallelism.json");
  app.add_option("--way", result.way)->group("");
  app.add_option("--record", result.record)->group("");
  cli::add_example(app, {"lockstep compare --parallelism --nproc 4"});
  parse(app, arguments);
  refuse_zeros(app, {"--layers", "--hidden", "--heads"});
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
