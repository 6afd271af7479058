#include "lockstep/cli/engine/compare/comparison_run.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/bench/comparison_cells.h"
#include "lockstep/bench/comparison_page.h"
#include "lockstep/cli/engine/command_line.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

std::string name_of(const ComparedJob& job) {
  if (!job.for_scaling) return job.name;
  return job.name + " on " + std::to_string(job.nproc) + (job.nproc == 1 ? " rank" : " ranks");
}

std::string done_text(const bench::Comparison& comparison, const RunResult& result) {
  std::string text = std::to_string(result.steps) + " steps in " + duration_text(result.seconds) +
                     ", " + fixed(result.samples_per_s, 1) + " " +
                     bench::counted_name(comparison).en + "/s";
  if (const auto score = bench::score_of(comparison, result))
    text += ", " + bench::score_name(comparison).en + " " +
            fixed(*score, comparison.perplexity ? 3 : 4);
  return text;
}

// The results of a comparison's jobs.
struct Found {
  bench::Comparison comparison;
  std::map<std::string, std::vector<RunResult>> scaled;

  std::string keep(const ComparedJob& job, const std::string& text) {
    RunResult result = parse_run_result(text, job.result().string());
    if (result.method != job.writes) {
      throw DataError(job.result().string() + " is the result of '" + result.method + "', not of " +
                      job.writes);
    }
    result.method = job.name;
    const std::string said = done_text(comparison, result);
    if (job.for_scaling)
      scaled[job.name].push_back(std::move(result));
    else
      comparison.methods.push_back({job.name, job.tutorial, std::move(result), ""});
    return said;
  }

  void sort_scaling() {
    comparison.scaling.clear();
    for (const bench::ComparedMethod& method : comparison.methods) {
      const auto found = scaled.find(method.method);
      if (found == scaled.end()) continue;
      bench::ScalingSeries series{method.method, found->second};
      if (method.result) series.runs.push_back(*method.result);
      std::sort(series.runs.begin(), series.runs.end(),
                [](const RunResult& a, const RunResult& b) { return a.nproc < b.nproc; });
      comparison.scaling.push_back(std::move(series));
    }
  }
};

}  // namespace

std::vector<ComparedJob> plan_jobs(
    const std::vector<ComparedRow>& rows, const CompareOptions& options, int64_t nproc,
    std::vector<int64_t> scaling,
    const std::function<std::vector<std::string>(size_t i, const ComparedJob& job)>& command) {
  std::vector<ComparedJob> jobs;
  const auto add = [&](size_t i, int64_t ranks, const std::string& more) {
    const ComparedRow& row = rows[i];
    ComparedJob& job = jobs.emplace_back(ComparedJob{.name = row.name,
                                                     .tutorial = row.tutorial,
                                                     .writes = row.writes,
                                                     .nproc = ranks,
                                                     .for_scaling = !more.empty(),
                                                     .folder = options.output,
                                                     .command = {}});
    job.folder /= row.name + more;
    job.command = command(i, job);
  };
  std::sort(scaling.begin(), scaling.end());
  scaling.erase(std::unique(scaling.begin(), scaling.end()), scaling.end());
  std::erase(scaling, nproc);
  for (size_t i = 0; i < rows.size(); ++i) add(i, rows[i].has_ranks ? nproc : 1, "");
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].has_ranks) continue;
    for (const int64_t size : scaling) add(i, size, "-ranks-" + std::to_string(size));
  }
  return jobs;
}

bench::Comparison begun_comparison(const CompareOptions& options, int64_t nproc) {
  bench::Machine machine = bench::this_machine();
  bench::Comparison comparison;
  comparison.nproc = nproc;
  comparison.threads_per_rank = options.threads;
  comparison.processors = machine.processors;
  comparison.processor = std::move(machine.processor);
  comparison.date = std::move(machine.date);
  return comparison;
}

int run_comparison(bench::Comparison begun, const std::vector<ComparedJob>& jobs,
                   const CompareOptions& options) {
  Found found{.comparison = std::move(begun), .scaled = {}};
  bench::Comparison& comparison = found.comparison;
  bench::ProgramExperiment experiment = options.experiment();
  for (const ComparedJob& job : jobs) {
    const auto fail = [&](const std::string& why) {
      if (!job.for_scaling) comparison.methods.push_back({job.name, job.tutorial, {}, why});
    };
    experiment.jobs.push_back(
        {.name = name_of(job),
         .command = job.command,
         .nproc = job.nproc,
         .log = job.log(),
         .result = job.result(),
         .read = [&](const std::string& text, double) { return found.keep(job, text); },
         .failed = fail});
  }
  const auto file = [&](const char* ending) {
    return fs::path(options.output) / (std::string("comparison.") + ending);
  };
  for (const char* ending : {"json", "md", "html"})
    experiment.files.push_back(file(ending).filename().string());
  experiment.write = [&] {
    found.sort_scaling();
    const auto json = to_json(comparison);
    write_json(file("json").string(), json);
    write_json(options.json, json);
    write_file_aside(file("md"), bench::comparison_markdown(comparison));
    write_file_aside(file("html"), bench::comparison_page(comparison));
  };
  experiment.summary = [&] {
    return bench::comparison_table(comparison) + "\nPage: " + file("html").string() +
           ", table: " + file("md").string() + ", figures: " + file("json").string();
  };
  return bench::run_programs(experiment);
}

}  // namespace lockstep::inline v0::engine
