// A comparison in words and as cells of tables: what the text table, the Markdown and the page have
// in common. Pure.
#pragma once

#include <optional>
#include <string>

#include "lockstep/report/comparison.h"
#include "lockstep/report/html_page.h"

namespace lockstep {

// A method's figures as text; "-" for what is unknown, all of them where it failed.
struct MethodCells {
  std::string method, time, speedup, samples_per_s, steps, peak_memory, score, macro_f1, startup,
      dtype, padding;
  std::string first_losses;  // with spaces between them
};
MethodCells method_cells(const Comparison& comparison, const ComparedMethod& method);

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

}  // namespace lockstep
