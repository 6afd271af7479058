#include "lockstep/cli/engine/compare/comparison_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/compare/method_run.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/memory_settings.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/output.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/report/comparison_cells.h"
#include "lockstep/report/comparison_page.h"
#include "lockstep/report/table.h"
#include "lockstep/report/terminal.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::engine {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOfRanks = "-ranks-";  // in a folder's name

struct JobOutcome {
  std::optional<RunResult> result;
  std::string failure;     // why there is none, in one line
  bool bad_input = false;  // the program says so: exit code 2
  std::vector<std::string> last_lines;
};

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &parts)};
}

// "model name : Intel(R) ..." on x86; nothing where the kernel does not say.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

std::string name_of(const ComparedJob& job) {
  if (!job.for_scaling) return job.name;
  return job.name + " on " + std::to_string(job.nproc) + (job.nproc == 1 ? " rank" : " ranks");
}

std::string done_text(const Comparison& comparison, const RunResult& result) {
  std::string text = std::to_string(result.steps) + " steps in " + duration_text(result.seconds) +
                     ", " + fixed(result.samples_per_s, 1) + " " + counted_name(comparison).en +
                     "/s";
  if (const auto score = score_of(comparison, result))
    text += ", " + score_name(comparison).en + " " + fixed(*score, comparison.perplexity ? 3 : 4);
  return text;
}

// What a program said itself: "exit code 2: lockstep train: ..." without what is in front.
std::string said(const std::string& failure) {
  const size_t colon = failure.find(": ");
  return colon == std::string::npos ? failure : failure.substr(colon + 2);
}

class Runner {
 public:
  explicit Runner(ComparisonRun run)
      : run_(std::move(run)),
        comparison_(std::move(run_.begun)),
        start_(std::chrono::steady_clock::now()) {}

  int run() {
    make_room();
    for (size_t i = 0; i < run_.jobs.size(); ++i) {
      const ComparedJob& job = run_.jobs[i];
      say(i, job, "started, log: " + job.log().string());
      JobOutcome outcome = run_job(job);
      // Nothing has run yet: the input is at fault, and the others would say the same.
      if (outcome.bad_input && i == 0) throw InvalidArgument(said(outcome.failure));
      say(i, job,
          outcome.result ? done_text(comparison_, *outcome.result) : "failed: " + outcome.failure);
      keep(job, std::move(outcome));
      write_all_files();
    }
    std::cout << comparison_table(comparison_) << "\nPage: " << file("html").string()
              << ", table: " << file("md").string() << ", figures: " << file("json").string()
              << std::endl;
    return tell_first_failure();
  }

 private:
  // Of a former comparison, those jobs included that are not asked for now.
  void make_room() const {
    std::vector<std::string> parts{"comparison.json", "comparison.md", "comparison.html"};
    for (const auto& entry : fs::directory_iterator(run_.output)) {
      const std::string name = entry.path().filename().string();
      const bool of_job = std::any_of(
          run_.former_names.begin(), run_.former_names.end(), [&name](const std::string& former) {
            return name == former || name.starts_with(former + kOfRanks);
          });
      if (of_job && fs::exists(entry.path() / "log.txt")) parts.push_back(name);
    }
    if (const auto moved = move_former_run_aside(run_.output, parts))
      write_all(STDERR_FILENO, *moved + "\n");
  }

  // "[3/9] distributed: ... (4 min 10 s)", on stderr.
  void say(size_t i, const ComparedJob& job, const std::string& what) const {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    write_all(STDERR_FILENO, "[" + std::to_string(i + 1) + "/" + std::to_string(run_.jobs.size()) +
                                 "] " + name_of(job) + ": " + what + " (" +
                                 duration_text(elapsed.count()) + " in all)\n");
  }

  // A launcher that the job starts adds the same to its ranks.
  std::vector<std::string> environment(const ComparedJob& job) const {
    launch::Variables variables =
        memory_variables(process_env(), allowed_memory(static_cast<int>(job.nproc)));
    variables["OMP_NUM_THREADS"] = std::to_string(comparison_.threads_per_rank);
    return launch::merge_environment(launch::current_environment(), variables);
  }

  JobOutcome run_job(const ComparedJob& job) const {
    const OutputFolder output(job.folder);
    const Deadline deadline = Deadline::seconds(run_.timeout);
    const MethodEnd end = run_method({.command = job.command,
                                      .env = environment(job),
                                      .log = job.log(),
                                      .terminal = find_terminal(STDERR_FILENO, process_env())},
                                     deadline);
    JobOutcome outcome{.result = {}, .failure = {}, .last_lines = end.last_lines};
    if (!end.status || !end.status->ok()) {
      outcome.failure = failure_text(end, deadline);
      outcome.bad_input = end.status && end.status->signal == 0 && end.status->exit_code == 2;
      return outcome;
    }
    try {
      outcome.result = parse_run_result(read_named_file(job.result()), job.result().string());
      if (outcome.result->method != job.writes) {
        throw DataError(job.result().string() + " is the result of '" + outcome.result->method +
                        "', not of " + job.writes);
      }
      outcome.result->method = job.name;
    } catch (const Error& error) {
      outcome.result.reset();
      outcome.failure = std::string("no usable result: ") + error.what();
    }
    return outcome;
  }

  void keep(const ComparedJob& job, JobOutcome outcome) {
    if (!outcome.result && !first_failure_)
      first_failure_ = Failure{name_of(job), job.log(), outcome.failure, outcome.last_lines};
    if (job.for_scaling) {
      if (outcome.result) scaled_[job.name].push_back(std::move(*outcome.result));
    } else {
      comparison_.methods.push_back(
          {job.name, job.tutorial, std::move(outcome.result), outcome.failure});
    }
    comparison_.scaling.clear();
    for (const ComparedMethod& method : comparison_.methods) {
      const auto found = scaled_.find(method.method);
      if (found == scaled_.end()) continue;
      ScalingSeries series{method.method, found->second};
      if (method.result) series.runs.push_back(*method.result);
      std::sort(series.runs.begin(), series.runs.end(),
                [](const RunResult& a, const RunResult& b) { return a.nproc < b.nproc; });
      comparison_.scaling.push_back(std::move(series));
    }
  }

  fs::path file(const std::string& ending) const { return run_.output / ("comparison." + ending); }

  void write_all_files() const {
    const auto json = to_json(comparison_);
    write_json(file("json").string(), json);
    write_json(run_.json, json);
    write_file_aside(file("md"), comparison_markdown(comparison_));
    write_file_aside(file("html"), comparison_page(comparison_));
  }

  int tell_first_failure() const {
    if (!first_failure_) return 0;
    std::string text = "lockstep compare: " + first_failure_->name +
                       " failed: " + first_failure_->why + "\nThe last lines of " +
                       first_failure_->log.string() + ":\n";
    for (const std::string& line : first_failure_->last_lines) text += "  " + line + "\n";
    write_all(STDERR_FILENO, text);
    return 1;
  }

  struct Failure {
    std::string name;
    fs::path log;
    std::string why;
    std::vector<std::string> last_lines;
  };

  ComparisonRun run_;
  Comparison comparison_;
  std::chrono::steady_clock::time_point start_;
  std::map<std::string, std::vector<RunResult>> scaled_;
  std::optional<Failure> first_failure_;
};

}  // namespace

fs::path job_folder(const fs::path& output, const std::string& name, int64_t scaled_to) {
  return output / (scaled_to == 0 ? name : name + kOfRanks + std::to_string(scaled_to));
}

int run_comparison(ComparisonRun run) {
  return Runner(std::move(run)).run();
}

Comparison comparison_of_this_machine() {
  Comparison comparison;
  comparison.processors = usable_cpu_count();
  comparison.processor = processor_name();
  comparison.date = today();
  return comparison;
}

std::vector<int64_t> other_sizes(std::vector<int64_t> sizes, int64_t nproc) {
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::erase(sizes, nproc);
  return sizes;
}

}  // namespace lockstep::engine
