// A comparison in words and as a sheet: the common part of the text table, the Markdown and the
// page. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/bench/comparison.h"
#include "lockstep/report/sheet.h"

namespace lockstep::inline v0::bench {

// Has a row for each method, with "-" for an unknown figure, and with `tutorial` a column for the
// tutorial's name of the method.
Sheet figures_sheet(const Comparison& comparison, bool tutorial);

// The first losses of a run as text.
std::vector<std::string> loss_cells(const RunResult& result);

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

}  // namespace lockstep::inline v0::bench
