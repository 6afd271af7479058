#include "lockstep/bench/step_figures.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/report/bar_chart.h"
#include "lockstep/report/svg.h"
#include "lockstep/report/table.h"

namespace lockstep::bench {
namespace {

struct Part {
  const char* name;
  double StepParts::* value;
};
constexpr std::array<Part, 6> kParts{{{"data", &StepParts::data},
                                      {"forward", &StepParts::forward},
                                      {"backward", &StepParts::backward},
                                      {"averaging", &StepParts::averaging},
                                      {"wait", &StepParts::wait},
                                      {"optimizer", &StepParts::optimizer}}};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

// Milliseconds of each step of a round, mean over the processes: where they wait for each other
// that is what each of them took; where they do not, it is what they do at the same time.
std::vector<double> step_times(const std::vector<StepTurn>& processes) {
  std::vector<double> steps(processes[0].steps.size());
  for (const StepTurn& turn : processes) {
    for (size_t i = 0; i < steps.size(); ++i)
      steps[i] += turn.steps.at(i).total() / static_cast<double>(processes.size());
  }
  return steps;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Samples a second of a whole round.
double speed_of(const StepSeries& series, size_t round) {
  return 1000.0 * static_cast<double>(series.batch * series.nproc) /
         mean(step_times(series.rounds[round]));
}

StepRow make_row(const StepSeries& series, const StepSeries& first) {
  StepRow row{
      .strategy = series.strategy, .nproc = series.nproc, .batch = series.batch, .parts = {}};
  std::vector<double> steps, ratios;
  double count = 0;
  for (size_t round = 0; round < series.rounds.size(); ++round) {
    const std::vector<double> own = step_times(series.rounds[round]);
    steps.insert(steps.end(), own.begin(), own.end());
    ratios.push_back(speed_of(series, round) / speed_of(first, round));
    row.pss_bytes = 0;
    for (const StepTurn& turn : series.rounds[round]) {
      row.pss_bytes += turn.pss_bytes;
      for (const StepParts& parts : turn.steps) {
        for (const Part& part : kParts) row.parts.*part.value += parts.*part.value;
        ++count;
      }
    }
  }
  for (const Part& part : kParts) row.parts.*part.value /= count;
  row.steps = static_cast<int64_t>(steps.size());
  row.ms_per_step = quantile(steps, 0.5);
  row.p95_ms = quantile(steps, 0.95);
  row.samples_per_s = 1000.0 * static_cast<double>(row.batch * row.nproc) / row.ms_per_step;
  row.times_first = quantile(ratios, 0.5);
  row.times_first_low = quantile(ratios, 0);
  row.times_first_high = quantile(ratios, 1);
  return row;
}

}  // namespace

std::string to_line(const StepTurn& turn) {
  nlohmann::json steps = nlohmann::json::array();
  for (const StepParts& parts : turn.steps) {
    nlohmann::json one;
    for (const Part& part : kParts) one[part.name] = parts.*part.value;
    steps.push_back(std::move(one));
  }
  return nlohmann::json{{"steps", std::move(steps)}, {"pss_bytes", turn.pss_bytes}}.dump();
}

StepTurn parse_turn_line(const std::string& line) {
  try {
    const auto json = nlohmann::json::parse(line);
    StepTurn turn;
    turn.pss_bytes = json.at("pss_bytes");
    for (const auto& one : json.at("steps")) {
      StepParts& parts = turn.steps.emplace_back();
      for (const Part& part : kParts) parts.*part.value = one.value(part.name, 0.0);
    }
    return turn;
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument("a contender answered '" + line.substr(0, 80) + "': " + error.what());
  }
}

std::vector<StepRow> make_step_rows(const std::vector<StepSeries>& all) {
  std::vector<StepRow> rows;
  for (const StepSeries& series : all) rows.push_back(make_row(series, all.front()));
  return rows;
}

std::string step_table(const std::vector<StepRow>& rows) {
  std::vector<Column> columns{
      {"strategy", Align::kLeft},         {"processes"}, {"ms/step"}, {"p95"}, {"samples/s"},
      {"times " + rows.front().strategy}, {"least-most"}};
  for (const Part& part : kParts) columns.push_back({part.name});
  columns.push_back({"MiB"});
  Table table(std::move(columns));
  for (const StepRow& row : rows) {
    std::vector<std::string> cells{
        row.strategy,
        std::to_string(row.nproc) + " x " + std::to_string(row.batch),
        fixed(row.ms_per_step, 2),
        fixed(row.p95_ms, 2),
        fixed(row.samples_per_s, 1),
        fixed(row.times_first, 3),
        fixed(row.times_first_low, 2) + "-" + fixed(row.times_first_high, 2)};
    for (const Part& part : kParts) cells.push_back(fixed(row.parts.*part.value, 2));
    cells.push_back(fixed(row.pss_bytes / (1 << 20), 0));
    table.add(std::move(cells));
  }
  return table.str();
}

std::string step_svg(const std::string& model, const std::vector<StepRow>& rows) {
  BarChart chart{.title = "Where a step of " + model + " goes",
                 .x_label = "ms",
                 .parts = {},
                 .bars = {},
                 .width = 720};
  for (const Part& part : kParts) {
    chart.parts.emplace_back(part.name);
    chart.colours.push_back(part_colour(part.name));
  }
  for (const StepRow& row : rows) {
    Bar bar{.label = row.strategy, .parts = {}, .note = fixed(row.parts.total(), 2)};
    for (const Part& part : kParts) bar.parts.push_back(row.parts.*part.value);
    chart.bars.push_back(std::move(bar));
  }
  return svg_bar_chart(chart);
}

nlohmann::ordered_json step_json(const std::string& model, const std::vector<StepRow>& rows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const StepRow& row : rows) {
    nlohmann::ordered_json parts;
    for (const Part& part : kParts) parts[part.name] = row.parts.*part.value;
    json.push_back({{"model", model},
                    {"strategy", row.strategy},
                    {"nproc", row.nproc},
                    {"batch_per_process", row.batch},
                    {"steps", row.steps},
                    {"ms_per_step", row.ms_per_step},
                    {"p95_ms", row.p95_ms},
                    {"samples_per_s", row.samples_per_s},
                    {"parts_ms", parts},
                    {"pss_bytes", row.pss_bytes},
                    {"times_first", row.times_first},
                    {"times_first_low", row.times_first_low},
                    {"times_first_high", row.times_first_high}});
  }
  return json;
}

}  // namespace lockstep::bench
