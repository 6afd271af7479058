#include "lockstep/bench/program_experiment.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <optional>

#include "lockstep/bench/experiment.h"
#include "lockstep/bench/experiment_record.h"
#include "lockstep/bench/program_run.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/memory_settings.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/output.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/signal_pipe.h"
#include "lockstep/report/table.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::bench {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct ProgramFailed : Error {
  ProgramFailed(const std::string& why, bool bad_input, std::vector<std::string> last_lines)
      : Error(why), bad_input(bad_input), last_lines(std::move(last_lines)) {}
  bool bad_input;  // the program ended with exit code 2
  std::vector<std::string> last_lines;
};

// A signal ends the experiment. It is no Error, which would end one job alone.
struct Stopped {
  int signal;
};

// A launcher that the job starts adds the same variables to its ranks.
std::vector<std::string> environment(const ProgramJob& job, int64_t threads) {
  launch::Variables variables =
      memory_variables(process_env(), allowed_memory(static_cast<int>(job.nproc)));
  variables["OMP_NUM_THREADS"] = std::to_string(threads);
  return launch::merge_environment(launch::current_environment(), variables);
}

std::string run_job(const ProgramJob& job, const ProgramExperiment& experiment, bool again,
                    launch::SignalPipe& signals) {
  if (const std::vector<int> came = signals.take(); !came.empty()) throw Stopped{came.front()};
  const OutputFolder folder(job.log.parent_path());
  fs::remove(job.result);  // a former turn's
  const Deadline deadline = Deadline::seconds(experiment.timeout);
  const auto start = Clock::now();
  const ProgramEnd end = run_program({.command = job.command,
                                      .env = environment(job, experiment.threads),
                                      .log = job.log,
                                      .append = again,
                                      .terminal = find_terminal(STDERR_FILENO, process_env()),
                                      .signals = &signals},
                                     deadline);
  if (end.stopped_by != 0) throw Stopped{end.stopped_by};
  const double seconds = seconds_since(start);
  if (!end.status || !end.status->ok()) {
    const bool bad_input = end.status && end.status->signal == 0 && end.status->exit_code == 2;
    throw ProgramFailed(failure_text(end, deadline), bad_input, end.last_lines);
  }
  try {
    return job.read(read_named_file(job.result), seconds);
  } catch (const Error& error) {
    throw ProgramFailed(std::string("no usable result: ") + error.what(), false, end.last_lines);
  }
}

// Strips what stands before a program's own line: "exit code 2: lockstep train: ...".
std::string said(const std::string& failure) {
  const size_t colon = failure.find(": ");
  return colon == std::string::npos ? failure : failure.substr(colon + 2);
}

// Writes lines to stderr and files after every turn, and remembers which job failed first.
class Recorder final : public TurnWatcher {
 public:
  explicit Recorder(const ProgramExperiment& experiment) : experiment_(experiment) {}

  void begins(const Turn& turn) override {
    say(turn, "started, log: " + job_of(turn).log.string());
  }
  void ended(const Turn& turn, const std::string& found) override {
    say(turn, found);
    experiment_.write();
  }
  void failed(const Turn& turn, const Error& error) override {
    const auto* failure = dynamic_cast<const ProgramFailed*>(&error);
    // Nothing has run yet: the input is at fault.
    if (failure != nullptr && failure->bad_input && turn.number == 1 && experiment_.alike)
      throw InvalidArgument(said(error.what()));
    say(turn, std::string("failed: ") + error.what());
    const ProgramJob& job = job_of(turn);
    if (first_failure_.empty()) {
      first_failure_ =
          "lockstep " + experiment_.name + ": " + job.name + " failed: " + error.what() + "\n";
      if (failure != nullptr) {
        first_failure_ += "The last lines of " + job.log.string() + ":\n";
        for (const std::string& line : failure->last_lines) first_failure_ += "  " + line + "\n";
      }
    }
    if (job.failed) job.failed(error.what());
    experiment_.write();
  }
  const std::string& first_failure() const { return first_failure_; }

 private:
  const ProgramJob& job_of(const Turn& turn) const {
    return experiment_.jobs[static_cast<size_t>(turn.number - 1) % experiment_.jobs.size()];
  }
  // "[3/9] distributed: ... (4 min 10 s in all)".
  void say(const Turn& turn, const std::string& what) const {
    write_all(STDERR_FILENO, "[" + std::to_string(turn.number) + "/" + std::to_string(turn.all) +
                                 "] " + turn.job + ": " + what + " (" +
                                 duration_text(seconds_since(start_)) + " in all)\n");
  }

  const ProgramExperiment& experiment_;
  const Clock::time_point start_ = Clock::now();
  std::string first_failure_;
};

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &parts)};
}

// Reads "model name : Intel(R) ...", which the kernel shows on x86; of ARM it shows numbers alone:
// "ARM 0x41/0xd40".
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string implementer;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) return "ARM " + implementer + "/" + value;
  }
  return {};
}

// The names in `output` that an experiment writes, each once.
std::vector<std::string> names_of(const ProgramExperiment& experiment) {
  std::vector<std::string> names = experiment.files;
  for (const ProgramJob& job : experiment.jobs)
    for (const fs::path& file : {job.log, job.result})
      names.push_back(file.lexically_relative(experiment.output).begin()->string());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

int run_programs(const ProgramExperiment& experiment) {
  if (const auto moved =
          make_room_for_experiment(experiment.output, experiment.name, names_of(experiment)))
    write_all(STDERR_FILENO, *moved + "\n");
  launch::SignalPipe signals;
  std::vector<Job> jobs;
  for (const ProgramJob& job : experiment.jobs) {
    jobs.push_back({job.name, [&job, &experiment, &signals, again = false]() mutable {
                      return run_job(job, experiment, std::exchange(again, true), signals);
                    }});
  }
  Recorder recorder(experiment);
  try {
    run_experiment(jobs, experiment.rounds, recorder);
  } catch (const Stopped& stopped) {
    write_all(STDERR_FILENO, "lockstep " + experiment.name + ": stopped by " +
                                 launch::signal_name(stopped.signal) + "; the logs are in " +
                                 experiment.output.string() + "\n");
    return 128 + stopped.signal;
  }
  std::cout << experiment.summary() << std::endl;
  write_all(STDERR_FILENO, recorder.first_failure());
  return recorder.first_failure().empty() ? 0 : 1;
}

Machine this_machine() {
  return {.processors = usable_cpu_count(), .processor = processor_name(), .date = today()};
}

}  // namespace lockstep::inline v0::bench
