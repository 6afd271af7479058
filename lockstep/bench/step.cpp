#include "lockstep/bench/step.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "lockstep/bench/experiment.h"
#include "lockstep/bench/turns.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::bench {
namespace {

constexpr const char* kStepPeer = "step.py";
constexpr int kMostSteps = 1000;  // steps of a turn, at most
const auto kTurnTime = std::chrono::minutes(10);

bool is_deepspeed(const std::string& strategy) {
  return strategy.starts_with("deepspeed-");
}
bool is_python(const std::string& strategy) {
  return strategy.starts_with("pytorch-") || is_deepspeed(strategy);
}

int processes_of(const std::string& strategy, int nproc) {
  return strategy == "single" || strategy == "pytorch-single" ? 1 : nproc;
}

bool is_bert(const std::string& model) {
  return model.starts_with("bert-");
}
bool is_lm(const std::string& model) {
  return model.starts_with("lm-");
}

std::vector<std::string> process_command(const StepOptions& options, const std::string& program,
                                         const std::string& strategy, const std::string& turns) {
  const std::string batch = std::to_string(options.batch);
  const std::string threads = std::to_string(options.threads);
  if (is_python(strategy)) {
    // The process starts as under torchrun, without the variables that `lockstep run` adds for
    // speed.
    std::vector<std::string> command{"env"};
    const EnvLookup env = process_env();
    for (const char* name :
         {"THP_MEM_ALLOC_ENABLE", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}) {
      if (!env(name)) command.insert(command.end(), {"-u", name});
    }
    command.insert(command.end(), {options.peers.python, options.peers.file(kStepPeer),
                                   options.model, strategy, batch, threads, options.device, turns});
    return command;
  }
  std::vector<std::string> command{
      program,           "bench",    "step",         "--model",   options.model, "--strategy",
      strategy,          "--batch",  batch,          "--threads", threads,       "--optimizer",
      options.optimizer, "--device", options.device, "--turns",   turns};
  if (!options.mesh.empty() && strategy.starts_with("zero3")) {
    command.insert(command.end(),
                   {"--mesh", options.mesh, "--nproc", std::to_string(options.nproc)});
  }
  return command;
}

// One contender: a child of this process that launches the contender's processes, and the pipes to
// these.
class StepContender {
 public:
  StepContender(const StepOptions& options, const std::string& program, const std::string& strategy)
      : processes_(processes_of(strategy, options.nproc)), turns_(processes_) {
    SubprocessOptions job;
    job.command = {program, "bench", "step", "--launches", "--nproc", std::to_string(processes_),
                   "--"};
    for (const std::string& word : process_command(options, program, strategy, turns_.address()))
      job.command.push_back(word);
    job_.emplace(job);
    series_ = {.strategy = strategy, .nproc = processes_, .batch = options.batch, .rounds = {}};
  }

  // Takes one step to warm up, and measures how long the next takes.
  void start(double turn_ms) {
    const StepTurn turn = take(2)[0];
    const double ms = std::max(turn.steps.back().total(), 0.01);
    steps_ = std::clamp(static_cast<int>(turn_ms / ms), 2, kMostSteps);
  }
  void take_turn() { series_.rounds.push_back(take(steps_)); }
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

}  // namespace

const std::vector<std::string>& step_models() {
  static const auto kModels = parse_names(
      "--model",
      "simple-cnn,resnet18,resnet18-cifar,bert-mini,bert-base,lm-tiny,lm-mini,lm-small,linear");
  return kModels;
}

const std::vector<std::string>& step_strategies() {
  static const auto kStrategies = parse_names(
      "--strategy",
      "ddp,ddp-bf16,ddp-timeline-off,ddp-timeline,ddp-timeline-operators,zero1,zero2,zero3,zero3-bf16,average,horovod,logical,independent,in-step,"
      "single,pytorch-ddp,pytorch-ddp-bf16,pytorch-fsdp2,pytorch-fsdp2-bf16,pytorch-average,"
      "pytorch-independent,pytorch-single,deepspeed-zero3");
  return kStrategies;
}

int64_t default_batch(const std::string& model) {
  if (is_bert(model)) return 16;
  if (is_lm(model)) return 4;
  return model == "linear" ? 8 : 64;
}

void leave_out_absent(StepOptions& options) {
  const auto leave_out = [&](bool (*which)(const std::string&), const char* name,
                             const std::string& modules) {
    if (std::none_of(options.strategies.begin(), options.strategies.end(), which)) return;
    const std::string obstacle = options.peers.obstacle(kStepPeer, modules);
    if (obstacle.empty()) return;
    log_warning(std::string(name) + " is left out: " + obstacle);
    std::erase_if(options.strategies, which);
  };
  const std::string torch = is_bert(options.model) || is_lm(options.model)
                                ? "torch.distributed, transformers"
                                : "torch.distributed";
  leave_out(is_python, "PyTorch", torch);
  leave_out(is_deepspeed, "DeepSpeed", torch + ", deepspeed");
}

std::vector<Row> measure_steps(const StepOptions& options, const std::string& program) {
  TurnBar bar;
  std::vector<std::unique_ptr<StepContender>> contenders;
  std::vector<Job> jobs;
  for (const std::string& strategy : options.strategies) {
    bar.starting(strategy);
    contenders.push_back(std::make_unique<StepContender>(options, program, strategy));
    contenders.back()->start(options.turn_ms);
    jobs.push_back({strategy, [&contender = *contenders.back()] {
                      contender.take_turn();
                      return std::string();
                    }});
  }
  run_experiment(jobs, options.rounds, bar);
  std::vector<StepSeries> all;
  for (const auto& contender : contenders) {
    contender->end();
    all.push_back(contender->series());
  }
  bar.finish("measured " + std::to_string(all.size()) + " ways to train " + options.model);
  return make_step_rows(options.model, all);
}

}  // namespace lockstep::inline v0::bench
