// Several ways to train the same thing, side by side: as a table, JSON and Markdown. Pure.
// comparison_page.h has the page for a browser.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/report/run_result.h"

namespace lockstep::bench {

struct ComparedMethod {
  std::string method;               // "distributed"
  std::string tutorial;             // what a tutorial calls it: "multi-gpu-distributed-cls"; or ""
  std::optional<RunResult> result;  // nothing: it failed
  std::string failure;              // why, in one line
};

// One method on several numbers of ranks, ascending.
struct ScalingSeries {
  std::string method;
  std::vector<RunResult> runs;
};

struct Comparison {
  std::string subject = "BERT";  // what is trained, for the title
  std::string model;
  std::string data;
  std::string recipe;  // "": the default one
  int64_t nproc = 2;
  int64_t threads_per_rank = 1;
  int64_t processors = 0;        // that the runs could use; 0: unknown
  std::string processor;         // its name; may be empty
  std::string date;              // "2025-11-21"
  std::string held_out = "dev";  // what evaluations are on: "dev" or "test"
  bool perplexity = false;       // what they give, of language models; else the accuracy
  std::vector<ComparedMethod> methods;
  std::vector<ScalingSeries> scaling;
};

// Whether a tutorial has names for the methods; without, no table has a column for them.
bool has_tutorial(const Comparison& comparison);

// The method named so, if it is there and has a result.
const RunResult* find_result(const Comparison& comparison, const std::string& method);

// Samples a second over those of the method `single`, which are 1; nothing where it has none. Not a
// ratio of minutes: a run of so many steps takes more samples on more ranks.
std::optional<double> speedup(const Comparison& comparison, const RunResult& result);

// The most that a rank took; nothing where it is unknown.
std::optional<double> peak_memory_mib(const RunResult& result);

// The first `count` losses, or as many as there are.
std::vector<double> first_losses(const RunResult& result, size_t count = 5);

// What `lockstep compare` prints.
std::string comparison_table(const Comparison& comparison);

// comparison.json. `methods` has an object a method: the fields of its result and method, tutorial,
// speedup, peak_memory_mib (the most of a rank) and peak_memory_mib_by_rank, first_losses, minutes;
// or, where it failed, method, tutorial and failure.
nlohmann::ordered_json to_json(const Comparison& comparison);

// comparison.md: the settings, the table, the first losses.
std::string comparison_markdown(const Comparison& comparison);

}  // namespace lockstep::bench
