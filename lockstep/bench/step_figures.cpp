#include "lockstep/bench/step_figures.h"

#include <array>

#include "lockstep/core/errors.h"
#include "lockstep/core/quantile.h"
#include "lockstep/report/bar_chart.h"
#include "lockstep/report/svg.h"

namespace lockstep::inline v0::bench {
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

// The milliseconds of each step of a round, as the mean over the processes. Processes that wait for
// each other all take that time; the others compute at the same time.
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

// The samples per second of a whole round.
double speed_of(const StepSeries& series, size_t round) {
  return 1000.0 * static_cast<double>(series.batch * series.nproc) /
         mean(step_times(series.rounds[round]));
}

Row make_step_row(const std::string& model, const StepSeries& series, const StepSeries& first) {
  std::vector<double> steps, ratios;
  std::array<double, kParts.size()> sums{};
  double count = 0, pss_bytes = 0;
  for (size_t round = 0; round < series.rounds.size(); ++round) {
    const std::vector<double> own = step_times(series.rounds[round]);
    steps.insert(steps.end(), own.begin(), own.end());
    ratios.push_back(speed_of(series, round) / speed_of(first, round));
    pss_bytes = 0;
    for (const StepTurn& turn : series.rounds[round]) {
      pss_bytes += turn.pss_bytes;
      for (const StepParts& parts : turn.steps) {
        for (size_t i = 0; i < kParts.size(); ++i) sums[i] += parts.*kParts[i].value;
        ++count;
      }
    }
  }
  Row parts;
  for (size_t i = 0; i < kParts.size(); ++i) parts[kParts[i].name] = sums[i] / count;
  const double ms = quantile(steps, 0.5);
  Row row{{"model", model},
          {"strategy", series.strategy},
          {"nproc", series.nproc},
          {"batch_per_process", series.batch},
          {"steps", steps.size()},
          {"ms_per_step", ms},
          {"p95_ms", quantile(steps, 0.95)},
          {"samples_per_s", 1000.0 * static_cast<double>(series.batch * series.nproc) / ms},
          {"parts_ms", parts},
          {"pss_bytes", pss_bytes}};
  put_ratios(row, "times_first", ratios);
  return row;
}

double part_of(const Row& row, const Part& part) {
  return row.at("parts_ms").at(part.name);
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

std::vector<Row> make_step_rows(const std::string& model, const std::vector<StepSeries>& all) {
  std::vector<Row> rows;
  for (const StepSeries& series : all) rows.push_back(make_step_row(model, series, all.front()));
  return rows;
}

std::string step_table(const std::vector<Row>& rows) {
  std::vector<Shown<Row>> columns{
      word("strategy", "strategy"),
      {same_words("processes"),
       [](const Row& row) {
         return row.at("nproc").dump() + " x " + row.at("batch_per_process").dump();
       }},
      figure("ms/step", "ms_per_step", 2),
      figure("p95", "p95_ms", 2),
      figure("samples/s", "samples_per_s", 1),
      figure("times " + rows.front().at("strategy").get<std::string>(), "times_first", 3),
      range("least-most", "times_first")};
  for (const Part& part : kParts)
    columns.push_back(
        {same_words(part.name), [&part](const Row& row) { return fixed(part_of(row, part), 2); }});
  columns.push_back(
      figure("MiB", "pss_bytes", [](double bytes) { return fixed(bytes / (1 << 20), 0); }));
  return text_of(sheet_of(columns, rows));
}

std::string step_svg(const std::vector<Row>& rows) {
  BarChart chart{
      .title = "Where a step of " + rows.front().at("model").get<std::string>() + " goes",
      .x_label = "ms",
      .parts = {},
      .bars = {},
      .width = 720};
  for (const Part& part : kParts) {
    chart.parts.emplace_back(part.name);
    chart.colours.push_back(part_colour(part.name));
  }
  for (const Row& row : rows) {
    Bar bar{.label = row.at("strategy"), .parts = {}, .note = {}};
    double sum = 0;
    for (const Part& part : kParts) {
      bar.parts.push_back(part_of(row, part));
      sum += bar.parts.back();
    }
    bar.note = fixed(sum, 2);
    chart.bars.push_back(std::move(bar));
  }
  return svg_bar_chart(chart);
}

}  // namespace lockstep::inline v0::bench
