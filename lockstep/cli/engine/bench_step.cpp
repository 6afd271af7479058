#include "lockstep/cli/engine/bench_step.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/cli/engine/bench_figures.h"
#include "lockstep/cli/engine/bench_step_figures.h"
#include "lockstep/cli/engine/bench_step_rank.h"
#include "lockstep/cli/engine/bench_step_script.h"
#include "lockstep/cli/engine/bench_turns.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/report/progress_bar.h"

namespace lockstep::engine {
namespace {

const std::vector<std::string> kModels{"simple-cnn", "resnet18",  "resnet18-cifar",
                                       "bert-mini",  "bert-base", "linear"};
const std::vector<std::string> kStrategies{"ddp",
                                           "ddp-bf16",
                                           "average",
                                           "horovod",
                                           "independent",
                                           "in-step",
                                           "single",
                                           "pytorch-ddp",
                                           "pytorch-ddp-bf16",
                                           "pytorch-average",
                                           "pytorch-independent",
                                           "pytorch-single"};
constexpr int kMostSteps = 1000;  // of a turn
const auto kTurnTime = std::chrono::minutes(10);

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

bool is_python(const std::string& strategy) {
  return strategy.rfind("pytorch-", 0) == 0;
}

int processes_of(const std::string& strategy, int nproc) {
  return strategy == "single" || strategy == "pytorch-single" ? 1 : nproc;
}

bool is_bert(const std::string& model) {
  return model.starts_with("bert-");
}

int64_t default_batch(const std::string& model) {
  if (is_bert(model)) return 16;
  return model == "linear" ? 8 : 64;
}

// Whether `python` has torch, and for BERT transformers; "" or why not.
std::string torch_obstacle(const std::string& python, bool transformers) {
  try {
    SubprocessOptions options;
    options.command = {
        python, "-c",
        transformers ? "import torch.distributed, transformers" : "import torch.distributed"};
    const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    options.stderr_fd = null.get();
    if (Subprocess(options).wait(Deadline::seconds(120)).ok()) return "";
    return "'" + python + "' cannot import torch.distributed" +
           (transformers ? " and transformers" : "");
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<std::string> process_command(const StepArguments& arguments,
                                         const std::string& strategy, const std::string& turns) {
  const std::string batch = std::to_string(arguments.batch);
  const std::string threads = std::to_string(arguments.threads);
  if (is_python(strategy)) {
    // As torchrun starts it: without what `lockstep run` adds for speed.
    std::vector<std::string> command{"env"};
    const EnvLookup env = process_env();
    for (const char* name :
         {"THP_MEM_ALLOC_ENABLE", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}) {
      if (!env(name)) command.insert(command.end(), {"-u", name});
    }
    command.insert(command.end(), {arguments.python, "-c", kStepScript, arguments.model, strategy,
                                   batch, threads, turns});
    return command;
  }
  return {self().string(),
          "bench",
          "step",
          "--model",
          arguments.model,
          "--strategy",
          strategy,
          "--batch",
          batch,
          "--threads",
          threads,
          "--optimizer",
          arguments.optimizer,
          "--turns",
          turns};
}

// One contender: a child of this process that launches the contender's processes, and their lines.
class Contender {
 public:
  Contender(const StepArguments& arguments, const std::string& strategy)
      : processes_(processes_of(strategy, arguments.nproc)), turns_(processes_) {
    SubprocessOptions options;
    options.command = {self().string(),
                       "bench",
                       "step",
                       "--launches",
                       "--nproc",
                       std::to_string(processes_),
                       "--"};
    for (const std::string& word : process_command(arguments, strategy, turns_.address()))
      options.command.push_back(word);
    job_.emplace(options);
    series_ = {.strategy = strategy, .nproc = processes_, .batch = arguments.batch, .rounds = {}};
  }

  // One step to warm up, and how long it then takes.
  void start(double turn_ms) {
    const StepTurn turn = take(2)[0];
    const double ms = std::max(turn.steps.back().total(), 0.01);
    steps_ = std::clamp(static_cast<int>(turn_ms / ms), 2, kMostSteps);
  }
  void round() { series_.rounds.push_back(take(steps_)); }
  // The processes leave, and so does their launcher.
  void end() {
    turns_.end();
    job_->wait(Deadline::seconds(60));
  }
  const StepSeries& series() const { return series_; }

 private:
  std::vector<StepTurn> take(int steps) {
    std::vector<StepTurn> all;
    for (const std::string& line : turns_.give(steps, *job_, Deadline::after(kTurnTime)))
      all.push_back(parse_turn_line(line));
    return all;
  }

  int processes_;
  TurnGiver turns_;
  std::optional<Subprocess> job_;
  StepSeries series_;
  int steps_ = 2;
};

std::vector<StepRow> measure(const StepArguments& arguments) {
  ProgressBar bar({.terminal = find_terminal(STDERR_FILENO, process_env())});
  std::vector<std::unique_ptr<Contender>> contenders;
  for (const std::string& strategy : arguments.strategies) {
    contenders.push_back(std::make_unique<Contender>(arguments, strategy));
    bar.update({.label = "starting " + strategy, .done = 0, .total = 1});
    contenders.back()->start(arguments.turn_ms);
  }
  const auto total = static_cast<int64_t>(contenders.size()) * arguments.rounds;
  int64_t done = 0;
  for (int round = 0; round < arguments.rounds; ++round) {
    for (const auto& contender : contenders) {
      contender->round();
      bar.update({.label = contender->series().strategy + " round " + std::to_string(round + 1) +
                           "/" + std::to_string(arguments.rounds),
                  .done = ++done,
                  .total = total});
    }
  }
  std::vector<StepSeries> all;
  for (const auto& contender : contenders) {
    contender->end();
    all.push_back(contender->series());
  }
  bar.finish("measured " + std::to_string(all.size()) + " ways to train " + arguments.model);
  return make_step_rows(all);
}

// Leaves out what this machine cannot run, and says so.
void leave_out_python(StepArguments& arguments) {
  if (std::none_of(arguments.strategies.begin(), arguments.strategies.end(), is_python)) return;
  const std::string obstacle = torch_obstacle(arguments.python, is_bert(arguments.model));
  if (obstacle.empty()) return;
  log_warning("PyTorch is left out: " + obstacle + "; name a Python that can with --python");
  std::erase_if(arguments.strategies, is_python);
}

int launch_processes(int nproc, const std::vector<std::string>& command) {
  launch::LaunchOptions options;
  options.command = command;
  options.nproc = nproc;
  options.threads_per_rank = 1;
  options.pin = false;  // all contenders alike, as torchrun does it
  return launch::launch(options).exit_code;
}

}  // namespace

StepArguments parse_step_arguments(const Arguments& arguments) {
  CLI::App app(
      "Measures whole training steps on random data: each contender is a job of its own, and they "
      "take turns in alternating rounds.",
      "lockstep bench step");
  StepArguments result;
  std::string strategies = "ddp,independent,pytorch-ddp";
  app.add_option("--model", result.model, joined(kModels) + " [simple-cnn]");
  app.add_option(
      "--strategy", strategies,
      joined(kStrategies) +
          " [ddp,independent,pytorch-ddp]; times are compared with the first one's. "
          "independent: as many processes that do not communicate, what the machine can "
          "do at most; in-step: the same, but they wait for each other once a step, what "
          "a method that averages in every step can do at most");
  app.add_option("--nproc", result.nproc, "processes of a contender [2]");
  app.add_option("--batch", result.batch, "samples of a process's step [64; bert: 16; linear: 8]");
  app.add_option("--threads", result.threads, "of each process [1]");
  app.add_option("--optimizer", result.optimizer,
                 "Lockstep's contenders: fused, or torch for torch::optim [fused]");
  app.add_option("--rounds", result.rounds, "how often the contenders take turns [7]");
  app.add_option("--turn-ms", result.turn_ms, "how long a turn is, about [1500]");
  app.add_option("--python", result.python, "for the pytorch strategies [python3]");
  app.add_option("--json", result.json, "write the rows to this file");
  app.add_option("--svg", result.svg, "draw where a step's time goes to this file");
  app.add_option("--turns", result.turns)->group("");
  parse(app, arguments);
  if (!contains(kModels, result.model)) {
    throw InvalidArgument("there is no model '" + result.model + "' to measure; choose " +
                          joined(kModels));
  }
  result.strategies = parse_names("--strategy", strategies);
  for (const std::string& strategy : result.strategies) {
    if (!contains(kStrategies, strategy)) {
      throw InvalidArgument("there is no strategy '" + strategy + "' to measure; choose from " +
                            joined(kStrategies));
    }
  }
  if (result.batch == 0) result.batch = default_batch(result.model);
  if (result.batch < 1 || result.nproc < 1 || result.threads < 1 || result.rounds < 1 ||
      !(result.turn_ms > 0)) {
    throw InvalidArgument(
        "--batch, --nproc, --threads, --rounds and --turn-ms must be 1 or more each");
  }
  if (result.optimizer != "fused" && result.optimizer != "torch")
    throw InvalidArgument("--optimizer is '" + result.optimizer + "'; choose fused or torch");
  return result;
}

int bench_step(const Arguments& arguments) {
  return run_guarded("bench step", [&] {
    // Inside: "--launches --nproc N -- COMMAND" starts a contender's processes.
    if (arguments.size() > 4 && arguments[0] == "--launches") {
      return launch_processes(std::stoi(arguments[2]), {arguments.begin() + 4, arguments.end()});
    }
    StepArguments parsed = parse_step_arguments(arguments);
    if (!parsed.turns.empty()) {
      run_step_rank({.model = parsed.model,
                     .strategy = parsed.strategies.at(0),
                     .batch = parsed.batch,
                     .threads = parsed.threads,
                     .fused = parsed.optimizer == "fused",
                     .turns = parsed.turns});
      return 0;
    }
    for (const std::string& path : {parsed.json, parsed.svg}) check_output_file(path);
    leave_out_python(parsed);
    if (parsed.strategies.empty()) throw InvalidArgument("no strategy is left to measure");
    const std::vector<StepRow> rows = measure(parsed);
    std::cout << step_table(rows) << std::flush;
    write_json(parsed.json, step_json(parsed.model, rows));
    if (!parsed.svg.empty()) write_file_aside(parsed.svg, step_svg(parsed.model, rows));
    return 0;
  });
}

}  // namespace lockstep::engine
