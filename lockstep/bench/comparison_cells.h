// A comparison in words and as a sheet: what the terminal's table, the Markdown and the page have
// in common. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/bench/comparison.h"
#include "lockstep/report/sheet.h"

namespace lockstep::bench {

// A row a method; "-" for what is unknown. With `tutorial`, a column for what the tutorial calls
// it.
Sheet figures_sheet(const Comparison& comparison, bool tutorial);

// The first losses of a run as text.
std::vector<std::string> loss_cells(const RunResult& result);

// What is trained on and counted: samples, of language models tokens.
Words counted_name(const Comparison& comparison);

// What times of training are counted in: seconds, but where the longest takes many of them minutes.
struct TimeUnit {
  Words name;
  double seconds = 1;
};
TimeUnit time_unit(const Comparison& comparison);
std::string time_text(const TimeUnit& unit, double seconds);  // without the unit

// What evaluations give: "dev accuracy", "test accuracy", "dev perplexity".
Words score_name(const Comparison& comparison);
std::optional<double> score_of(const Comparison& comparison, const RunResult& result);

struct ComparisonWords {
  Words title;
  Words settings;  // model, ranks, data, machine
  Words remarks;   // the fastest method; what to mind
};
ComparisonWords comparison_words(const Comparison& comparison);

}  // namespace lockstep::bench
