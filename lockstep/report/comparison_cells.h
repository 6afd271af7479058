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
  std::string method, minutes, speedup, samples_per_s, steps, peak_memory, score, macro_f1, startup,
      dtype, padding;
  std::string first_losses;  // with spaces between them
};
MethodCells method_cells(const Comparison& comparison, const ComparedMethod& method);

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
