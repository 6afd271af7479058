// A comparison in words and as table cells: the common part of the text table, the Markdown and the
// page. Pure.
#pragma once

#include <optional>
#include <string>

#include "lockstep/report/comparison.h"
#include "lockstep/report/html_page.h"

namespace lockstep {

// A method's figures as text; "-" for an unknown figure, and for all of them if the method failed.
struct MethodCells {
  std::string method, time, speedup, samples_per_s, steps, peak_memory, score, macro_f1, startup,
      dtype, padding;
  std::string first_losses;  // separated by spaces
};
MethodCells method_cells(const Comparison& comparison, const ComparedMethod& method);

// The unit of the training data: "samples", or "tokens" for language models.
Words counted_name(const Comparison& comparison);

// The unit of training times: seconds, or minutes if the longest time takes many of them.
struct TimeUnit {
  Words name;
  double seconds = 1;
};
TimeUnit time_unit(const Comparison& comparison);
std::string time_text(const TimeUnit& unit, double seconds);  // without the unit

// The name of the evaluations' result: "dev accuracy", "test accuracy", "dev perplexity".
Words score_name(const Comparison& comparison);
std::optional<double> score_of(const Comparison& comparison, const RunResult& result);

struct ComparisonWords {
  Words title;
  Words settings;  // model, ranks, data, machine
  Words remarks;   // the fastest method, and notes for the reader
};
ComparisonWords comparison_words(const Comparison& comparison);

}  // namespace lockstep
