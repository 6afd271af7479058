// A comparison of several ways to train the same model, as a table, JSON and Markdown. Pure.
// comparison_page.h has the page for a browser.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/report/run_result.h"

namespace lockstep::inline v0::bench {

struct ComparedMethod {
  std::string method;    // "distributed"
  std::string tutorial;  // the tutorial's name for it: "multi-gpu-distributed-cls"; or ""
  std::optional<RunResult> result;  // nullopt: it failed
  std::string failure;              // the reason, in one line
};

// One method on several numbers of ranks, in ascending order.
struct ScalingSeries {
  std::string method;
  std::vector<RunResult> runs;
};

struct Comparison {
  std::string subject = "BERT";  // the model that is trained, for the title
  std::string model;
  std::string data;
  std::string recipe;  // "": the default recipe
  int64_t nproc = 2;
  int64_t threads_per_rank = 1;
  int64_t processors = 0;        // available to the runs; 0: unknown
  std::string processor;         // the processor's name; may be empty
  std::string date;              // "2025-11-21"
  std::string held_out = "dev";  // the set of the evaluations: "dev" or "test"
  // Evaluations give the perplexity (language models); otherwise the accuracy.
  bool perplexity = false;
  std::vector<ComparedMethod> methods;
  std::vector<ScalingSeries> scaling;
};

// Whether any method has a tutorial's name; if none has, tables have no column for it.
bool has_tutorial(const Comparison& comparison);

// The result of that method; null if the method is missing or failed.
const RunResult* find_result(const Comparison& comparison, const std::string& method);

// Samples per second relative to the method `single`, which is 1; nullopt if that method has no
// result. It is not a ratio of minutes, because a run of a fixed number of steps takes more samples
// on more ranks.
std::optional<double> speedup(const Comparison& comparison, const RunResult& result);

// The largest memory of any rank; nullopt if unknown.
std::optional<double> peak_memory_mib(const RunResult& result);

// The first `count` losses, or all if there are fewer.
std::vector<double> first_losses(const RunResult& result, size_t count = 5);

// The text that `lockstep compare` prints.
std::string comparison_table(const Comparison& comparison);

// comparison.json. `methods` has one object per method: the fields of its result, and method,
// tutorial, speedup, peak_memory_mib (the largest of any rank), peak_memory_mib_by_rank,
// first_losses and minutes; a failed method has method, tutorial and failure.
nlohmann::ordered_json to_json(const Comparison& comparison);

// comparison.md: the settings, the table and the first losses.
std::string comparison_markdown(const Comparison& comparison);

}  // namespace lockstep::inline v0::bench
