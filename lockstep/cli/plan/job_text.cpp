#include <algorithm>
#include <functional>
#include <sstream>

#include "lockstep/cli/plan/job_report.h"
#include "lockstep/cli/usage.h"
#include "lockstep/report/table.h"
#include "lockstep/report/text_width.h"

namespace lockstep::inline v0::cli {
namespace {

using plan::Candidate;
using plan::Estimate;
using plan::Layout;

// A column of a candidate, and how easily it is left out: the largest number first.
struct ShownColumn {
  Column column;
  int dispensable;
  std::function<std::string(const Candidate&)> cell;
};

std::string schedule_text(const Layout& layout) {
  if (layout.pipe == 1) return "-";
  return layout.schedule + (layout.chunks > 1 ? " x" + std::to_string(layout.chunks) : "");
}

std::string zero_text(const Layout& layout) {
  return std::to_string(layout.zero);
}

std::vector<ShownColumn> shown_columns(const JobPlan& job) {
  return {
      {{"mesh", Align::kLeft}, 0, [](const Candidate& c) { return mesh_text(c.layout); }},
      {{"zero"}, 0, [](const Candidate& c) { return zero_text(c.layout); }},
      {{"micro-batch"},
       4,
       [](const Candidate& c) {
         return std::to_string(c.layout.micro_batch) + " x " +
                std::to_string(c.layout.micro_batches());
       }},
      {{"schedule", Align::kLeft}, 3, [](const Candidate& c) { return schedule_text(c.layout); }},
      {{"activations", Align::kLeft},
       5,
       [](const Candidate& c) {
         return std::string(name_of(c.layout.activations)) +
                (c.layout.divides_rows && c.layout.tensor > 1 ? ", rows" : "");
       }},
      {{"memory"},
       0,
       [](const Candidate& c) { return bytes_text(c.estimate.memory.of_worst().total()); }},
      {{"step"}, 6, [](const Candidate& c) { return seconds_text(c.estimate.step); }},
      {{"tokens/s/rank"},
       0,
       [](const Candidate& c) { return fixed(c.estimate.tokens_per_second, 0); }},
      {{"bubble"}, 2, [](const Candidate& c) { return percent(c.estimate.bubble, 1); }},
      {{"exposed"}, 1, [](const Candidate& c) { return percent(c.estimate.exposed, 1); }},
      {{"MFU"}, 7, [&job](const Candidate& c) {
         return percent(
             plan::utilization(c.estimate, job.model, c.layout, job.machine, job.convention), 1);
       }}};
}

size_t widest_line(const std::string& text) {
  size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, display_width(line));
  return widest;
}

std::string candidates_table(const std::vector<ShownColumn>& shown,
                             const std::vector<Candidate>& candidates, bool numbered) {
  std::vector<Column> columns;
  if (numbered) columns.push_back({"#"});
  for (const ShownColumn& one : shown) columns.push_back(one.column);
  Table table(columns);
  for (size_t i = 0; i < candidates.size(); ++i) {
    std::vector<std::string> cells;
    if (numbered) cells.push_back(std::to_string(i + 1));
    for (const ShownColumn& one : shown) cells.push_back(one.cell(candidates[i]));
    table.add(std::move(cells));
  }
  return table.str();
}

std::string fitting_table(const JobPlan& job, const std::vector<Candidate>& candidates,
                          bool numbered, size_t columns) {
  std::vector<ShownColumn> shown = shown_columns(job);
  for (;;) {
    std::string text = candidates_table(shown, candidates, numbered);
    const auto least = std::max_element(
        shown.begin(), shown.end(),
        [](const ShownColumn& a, const ShownColumn& b) { return a.dispensable < b.dispensable; });
    if (widest_line(text) <= columns || least->dispensable == 0) return text;
    shown.erase(least);
  }
}

std::string headline(const JobPlan& job) {
  const Layout& layout = job.request.job;
  return job.model.name + ", " + count_text(static_cast<double>(parameter_count(job.model))) +
         " parameters; " + std::to_string(job.request.ranks) + " ranks of " + job.machine.name +
         "; " + std::to_string(layout.global_batch) + " sequences of " +
         std::to_string(layout.sequence) + " tokens a step; " + name_of(layout.precision) + ", " +
         name_of(layout.optimizer) + "; stack " + job.stack.name;
}

std::string lines_of(const std::vector<std::string>& lines, size_t columns) {
  std::string text;
  for (const std::string& line : lines) text += wrapped(line, 0, 4, columns) + "\n";
  return text;
}

std::string search_text(const JobPlan& job, size_t columns) {
  const plan::SearchResult& found = job.found;
  std::string text = wrapped(grouped(found.layouts) + " layouts in " + seconds_text(job.seconds) +
                                 "; memory computed of " + grouped(found.weighed) + ", time of " +
                                 grouped(found.timed),
                             0, 0, columns) +
                     "\n\n";
  if (found.best.empty()) {
    text += wrapped("No layout fits into the " + bytes_text(job.machine.memory) + " of a rank.", 0,
                    0, columns) +
            "\n\n";
  } else {
    text += fitting_table(job, found.best, true, columns) + "\n" +
            wrapped("1 is " + to_string(found.best.front().layout), 0, 4, columns) + "\n";
    std::vector<std::string> reasons;
    for (size_t i = 1; i < found.best.size(); ++i)
      reasons.push_back(std::to_string(i + 1) + ": " + found.best[i].loses);
    if (!reasons.empty()) text += "\nWhy they lose against 1:\n" + lines_of(reasons, columns);
  }
  if (found.too_large.empty()) return text;
  text += found.best.empty() ? "These lack least:\n" : "\nThese would be faster:\n";
  for (const Candidate& candidate : found.too_large)
    text += wrapped(to_string(candidate.layout) + ": " + seconds_text(candidate.estimate.step) +
                        " a step, but " + candidate.loses,
                    0, 4, columns) +
            "\n";
  return text;
}

std::string memory_table(const Estimate& estimate) {
  // The first, the fullest and the last stage, or all of few.
  const auto& stages = estimate.memory.stages;
  std::vector<size_t> shown;
  constexpr size_t kFew = 4;
  for (size_t i = 0; i < stages.size(); ++i)
    if (stages.size() <= kFew || i == 0 || i + 1 == stages.size() ||
        i == static_cast<size_t>(estimate.memory.worst))
      shown.push_back(i);
  std::vector<Column> columns{{"memory of a rank", Align::kLeft}};
  for (const size_t stage : shown)
    columns.push_back({stages.size() == 1 ? "" : "stage " + std::to_string(stage)});
  Table table(columns);
  const size_t parts = estimate.memory.of_worst().parts().size();
  for (size_t part = 0; part < parts; ++part) {
    std::vector<std::string> cells{estimate.memory.of_worst().parts()[part].first};
    double sum = 0;
    for (const size_t stage : shown) {
      const double bytes = stages[stage].parts()[part].second;
      sum += bytes;
      cells.push_back(bytes > 0 ? bytes_text(bytes) : "-");
    }
    if (sum > 0) table.add(std::move(cells));
  }
  std::vector<std::string> total{"together"};
  for (const size_t stage : shown) total.push_back(bytes_text(stages[stage].total()));
  table.add(std::move(total));
  return table.str();
}

std::string time_table(const Estimate& estimate) {
  Table table({{"time of a step", Align::kLeft}, {""}, {"share"}});
  for (const auto& [name, seconds] : estimate.time.parts())
    if (seconds > 0) table.add({name, seconds_text(seconds), percent(seconds / estimate.step, 1)});
  table.add({"together", seconds_text(estimate.step), ""});
  return table.str();
}

std::string one_text(const JobPlan& job, size_t columns) {
  const Candidate& one = *job.one;
  const Estimate& found = one.estimate;
  const double flops = plan::flops_per_second(found, job.model, one.layout, job.convention);
  std::string text = wrapped(to_string(one.layout), 0, 0, columns) + "\n";
  text += wrapped(fits_line(job), 0, 0, columns) + "\n";
  text +=
      wrapped(
          fixed(found.tokens_per_second, 0) + " tokens/s a rank, " +
              count_text(found.tokens_per_second * static_cast<double>(one.layout.ranks())) +
              " together; " + fixed(flops / 1e12, 1) + " TFLOP/s a rank by " + job.convention.name +
              ", " +
              percent(plan::utilization(found, job.model, one.layout, job.machine, job.convention),
                      1) +
              " of the peak; bubble " + percent(found.bubble, 1) + ", exposed communication " +
              percent(found.exposed, 1),
          0, 0, columns) +
      "\n\n";
  text += memory_table(found) + "\n" + time_table(found);
  const std::vector<std::string> losses = found.losses();
  if (!losses.empty()) {
    text += "\nWhat it loses most by:\n";
    for (const std::string& loss : losses) text += wrapped(loss, 0, 4, columns) + "\n";
  }
  return text;
}

std::string variations_text(const JobPlan& job, const Candidate& shown, size_t columns) {
  Table table({{"what if", Align::kLeft}, {"step"}, {"tokens/s/rank"}, {"change"}});
  table.add({"as planned", seconds_text(shown.estimate.step),
             fixed(shown.estimate.tokens_per_second, 0), ""});
  std::string others;
  for (const Variation& one : job.variations) {
    table.add({one.what, seconds_text(one.estimate.step), fixed(one.estimate.tokens_per_second, 0),
               percent(one.estimate.tokens_per_second / shown.estimate.tokens_per_second - 1, 1)});
    if (one.fastest)
      others += wrapped("With " + one.what + " the fastest is " + to_string(one.fastest->layout) +
                            ": " + seconds_text(one.fastest->estimate.step) + " a step",
                        0, 4, columns) +
                "\n";
  }
  return "\n" + table.str() + others;
}

std::string goodput_text(const JobPlan& job) {
  const plan::Goodput& goodput = *job.goodput;
  std::string text = "A failure each " + duration_text(goodput.mtbf) + " of the job; ";
  if (job.in_place) {
    text += "the others go on in place";
  } else {
    text += "a checkpoint each " + duration_text(goodput.interval) + " of training";
  }
  text += ". " + percent(goodput.share, 1) + " of the time is training that lasts";
  if (goodput.checkpoints > 0) text += ", " + percent(goodput.checkpoints, 1) + " checkpoints";
  if (goodput.lost > 0) text += ", " + percent(goodput.lost, 1) + " is done again";
  if (goodput.restarts > 0) text += ", " + percent(goodput.restarts, 1) + " restarts";
  return text + ".";
}

std::string cost_text(const JobPlan& job) {
  const std::string tokens = count_text(job.tokens) + " tokens: ";
  if (!job.cost) return tokens + "never, for it fails faster than it restarts.";
  constexpr double kDay = 24 * 3600.0;
  const plan::Cost& cost = *job.cost;
  std::string text = tokens +
                     (cost.seconds < kDay ? duration_text(cost.seconds)
                                          : fixed(cost.seconds / kDay, 1) + " days") +
                     ", " + count_text(cost.rank_hours) + " hours of ranks";
  if (job.price > 0)
    text += ", a price of " + count_text(cost.price) + " at " + fixed(job.price, 2) + " an hour";
  return text + ".";
}

}  // namespace

std::string fits_line(const JobPlan& job) {
  if (const Candidate* shown = job.shown()) {
    const double taken = shown->estimate.memory.of_worst().total();
    const std::string sizes = bytes_text(taken) + " of " + bytes_text(job.machine.memory);
    return shown->estimate.fits() ? "fits: " + mesh_text(shown->layout) + " takes " + sizes + ", " +
                                        bytes_text(shown->estimate.spare_bytes) + " are left"
                                  : "does not fit: " + mesh_text(shown->layout) + " takes " +
                                        sizes + "; " + plan::lack_of(shown->estimate);
  }
  std::string line = "does not fit: none of " + grouped(job.found.layouts) + " layouts";
  if (job.found.too_large.empty()) return line;
  const Candidate& nearest = job.found.too_large.front();
  return line + "; of the nearest, " + mesh_text(nearest.layout) + ", " + nearest.loses;
}

std::string text_of(const JobPlan& job, size_t columns) {
  std::string text = wrapped(headline(job), 0, 0, columns) + "\n";
  text += job.one ? one_text(job, columns) : search_text(job, columns);
  const Candidate* shown = job.shown();
  if (shown != nullptr && !job.variations.empty()) text += variations_text(job, *shown, columns);
  if (job.goodput) text += "\n" + wrapped(goodput_text(job), 0, 0, columns) + "\n";
  if (job.tokens > 0) text += "\n" + wrapped(cost_text(job), 0, 0, columns) + "\n";
  return text;
}

}  // namespace lockstep::inline v0::cli
