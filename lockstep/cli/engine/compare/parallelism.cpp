#include "lockstep/cli/engine/compare/parallelism.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/cli/engine/compare/comparison_run.h"
#include "lockstep/cli/engine/compare/method_run.h"
#include "lockstep/cli/engine/compare/parallelism_rank.h"
#include "lockstep/cli/engine/compare/parallelism_report.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/report/table.h"
#include "lockstep/train/run_claim.h"

namespace lockstep::engine {
namespace fs = std::filesystem;
namespace {

constexpr int kRounds = 2;

const std::vector<std::string>& result_names() {
  static const std::vector<std::string> names{"parallelism.json", "parallelism.html", "memory.svg",
                                              "time.svg",         "memory_zh.svg",    "time_zh.svg",
                                              "parallelism-runs"};
  return names;
}

// "data=4 zero 1" as a file's name: "data-4-zero-1".
std::string file_name_of(const std::string& way) {
  std::string name = way;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  return name;
}

Arguments words_of_run(const DividedSettings& of, const std::string& way, const fs::path& record) {
  Arguments words{"compare", "--parallelism", "--way", way, "--record", record.string()};
  const auto add = [&words](const std::string& option, int64_t value) {
    words.insert(words.end(), {option, std::to_string(value)});
  };
  words.insert(words.end(), {"--model", of.model});
  add("--nproc", of.nproc);
  add("--steps", of.steps);
  add("--batch", of.batch);
  add("--length", of.length);
  add("--vocabulary", of.vocabulary);
  if (of.layers > 0) add("--layers", of.layers);
  if (of.hidden > 0) add("--hidden", of.hidden);
  if (of.heads > 0) add("--heads", of.heads);
  add("--threads-per-rank", of.threads);
  return words;
}

DividedWay way_called(const std::string& name, const DividedSettings& settings) {
  for (const DividedWay& way : plan_divided(settings).ways)
    if (way.name == name) return way;
  throw InvalidArgument("there is no way '" + name + "' on " + std::to_string(settings.nproc) +
                        " ranks; call compare --parallelism without --way");
}

// A run's first process starts its ranks, which are called alike.
int run_way(const ParallelismArguments& arguments) {
  const DividedSettings& settings = arguments.settings;
  const DividedWay way = way_called(arguments.way, settings);
  if (launch::read_job_environment(process_env()).launcher != launch::Launcher::kNone) {
    run_divided_rank(way, settings, arguments.record);
    return 0;
  }
  launch::LaunchOptions options;
  options.command = {"lockstep"};
  const Arguments words = words_of_run(settings, way.name, arguments.record);
  options.command.insert(options.command.end(), words.begin(), words.end());
  options.program = self().string();
  options.nproc = settings.nproc;
  options.threads_per_rank = settings.threads;
  options.pin = settings.nproc <= usable_cpu_count();
  return launch::launch(options).exit_code;
}

class Measuring {
 public:
  Measuring(const ParallelismArguments& arguments, DividedPlan plan) : arguments_(arguments) {
    const Comparison machine = comparison_of_this_machine();
    shown_.settings = arguments.settings;
    shown_.processor = machine.processor;
    shown_.processors = machine.processors;
    shown_.date = machine.date;
    shown_.left_out = std::move(plan.left_out);
    for (DividedWay& way : plan.ways) {
      const DividedTheory theory = theory_of(way, arguments.settings);
      shown_.rows.push_back({.way = std::move(way), .theory = theory, .runs = {}});
    }
  }

  int run() {
    const fs::path output = arguments_.output;
    if (const auto moved = move_former_run_aside(output, result_names()))
      write_all(STDERR_FILENO, *moved + "\n");
    for (const LeftOutWay& left : shown_.left_out)
      write_all(STDERR_FILENO, "left out: " + left.name + ": " + left.why + "\n");
    const OutputFolder runs(output / "parallelism-runs");
    const size_t ways = shown_.rows.size();
    for (size_t i = 0; i < kRounds * ways; ++i)
      measure(shown_.rows[i % ways], i / ways,
              "[" + std::to_string(i + 1) + "/" + std::to_string(kRounds * ways) + "] ");
    const auto json = to_json(shown_);
    write_json((output / "parallelism.json").string(), json);
    write_json(arguments_.json, json);
    write_file_aside(output / "parallelism.html", divided_page(shown_));
    const Words memory = divided_memory_picture(shown_), time = divided_time_picture(shown_);
    write_file_aside(output / "memory.svg", memory.en);
    write_file_aside(output / "memory_zh.svg", memory.zh);
    write_file_aside(output / "time.svg", time.en);
    write_file_aside(output / "time_zh.svg", time.zh);
    std::cout << divided_table(shown_) << "\nPage: " << (output / "parallelism.html").string()
              << ", figures: " << (output / "parallelism.json").string() << std::endl;
    for (const DividedRow& row : shown_.rows) {
      if (row.failure.empty()) continue;
      write_all(STDERR_FILENO,
                "lockstep compare: " + row.way.name + " failed: " + row.failure + "\n");
      return 1;
    }
    return 0;
  }

 private:
  void measure(DividedRow& row, size_t round, const std::string& count) const {
    if (!row.failure.empty()) return;
    const fs::path stem = fs::path(arguments_.output) / "parallelism-runs" /
                          (file_name_of(row.way.name) + "." + std::to_string(round + 1));
    const fs::path log = stem.string() + ".log", record = stem.string() + ".json";
    write_all(STDERR_FILENO, count + row.way.name + ": started, log: " + log.string() + "\n");
    std::vector<std::string> command{self().string()};
    const Arguments words = words_of_run(arguments_.settings, row.way.name, record);
    command.insert(command.end(), words.begin(), words.end());
    const Deadline deadline = Deadline::seconds(arguments_.timeout);
    const MethodEnd end = run_method(
        {.command = command, .env = launch::current_environment(), .log = log}, deadline);
    try {
      if (!end.status || !end.status->ok()) throw Error(failure_text(end, deadline));
      row.runs.push_back(parse_divided_record(read_named_file(record), record.string()));
    } catch (const Error& error) {
      row.failure = error.what();
      row.runs.clear();
      write_all(STDERR_FILENO, count + row.way.name + ": failed: " + row.failure + "\n");
      return;
    }
    write_all(STDERR_FILENO, count + row.way.name + ": " + fixed(row.step_ms(), 1) +
                                 " ms a step, loss " + fixed(row.runs.back().last_loss, 4) + "\n");
  }

  const ParallelismArguments& arguments_;
  DividedComparison shown_;
};

}  // namespace

ParallelismArguments parse_parallelism_arguments(const Arguments& arguments) {
  CLI::App app(
      "Trains one language model on random words by every way of dividing it, and by three "
      "products of ways, all on the same number of processes, and shows memory, bytes sent, "
      "bubble and time beside theory.",
      "lockstep compare --parallelism");
  ParallelismArguments result;
  DividedSettings& of = result.settings;
  bool parallelism = false;
  app.add_flag("--parallelism", parallelism, "this comparison")->required();
  app.add_option("--nproc", of.nproc, "ranks of each way [4]");
  app.add_option("--steps", of.steps, "that are timed, after two to warm up [10]");
  app.add_option("--model", of.model, joined(lm_preset_names()) + " [tiny]")->type_name("NAME");
  app.add_option("--layers", of.layers, "of the model [the preset's]");
  app.add_option("--hidden", of.hidden,
                 "of the model; its MLP is four times as wide then [the preset's]");
  app.add_option("--heads", of.heads, "of the model [the preset's]");
  app.add_option("--vocabulary", of.vocabulary, "words [2048]");
  app.add_option("--batch", of.batch, "sequences of a step, of all ranks together [8]");
  app.add_option("--length", of.length, "tokens of a sequence [128]");
  app.add_option("--threads-per-rank", of.threads, "of each process [processors / ranks]");
  app.add_option("--timeout", result.timeout, "seconds that a run may take [3600]");
  app.add_option("--output", result.output, "directory for everything [runs/parallelism]")
      ->type_name("DIR");
  app.add_option("--json", result.json, "also write parallelism.json to this file")
      ->type_name("FILE");
  app.add_option("--way", result.way)->group("");
  app.add_option("--record", result.record)->group("");
  cli::add_example(app, {"lockstep compare --parallelism --nproc 4"});
  parse(app, arguments);
  refuse_zeros(app, {"--layers", "--hidden", "--heads", "--threads-per-rank"});
  check_settings(of);
  if (!(result.timeout > 0)) throw InvalidArgument("--timeout must be more than 0 seconds");
  return result;
}

int compare_parallelism(const Arguments& arguments) {
  return run_guarded("compare", [&] {
    ParallelismArguments parsed = parse_parallelism_arguments(arguments);
    if (parsed.settings.threads == 0)
      parsed.settings.threads =
          std::max(1, static_cast<int>(usable_cpu_count()) / parsed.settings.nproc);
    if (!parsed.way.empty()) return run_way(parsed);
    if (launch::read_job_environment(process_env()).launcher != launch::Launcher::kNone)
      throw InvalidArgument("compare starts the ranks itself; call it without a launcher");
    DividedPlan plan = plan_divided(parsed.settings);
    if (plan.ways.empty())
      throw InvalidArgument("no way fits; the first: " + plan.left_out.front().why);
    check_result_files({parsed.json});
    const RunClaim claim(parsed.output, process_env());
    return Measuring(parsed, std::move(plan)).run();
  });
}

}  // namespace lockstep::engine
