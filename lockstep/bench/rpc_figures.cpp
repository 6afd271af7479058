#include "lockstep/bench/rpc_figures.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/quantile.h"
#include "lockstep/report/bar_chart.h"

namespace lockstep::inline v0::bench {
namespace {

constexpr RpcWorkload kRpcWorkloads[] = {RpcWorkload::kSmall, RpcWorkload::kFlight,
                                         RpcWorkload::kTensor};

double rpc_value(const RpcTask& task, const RpcTurn& turn) {
  switch (task.what) {
    case RpcWorkload::kSmall:
      return turn.p50_us;
    case RpcWorkload::kFlight:
      return static_cast<double>(task.calls) / turn.p50_us * 1e6;
    default:
      return static_cast<double>(task.bytes) / turn.p50_us / 1e3;
  }
}

Row make_rpc_row(const RpcSeries& series, const RpcSeries& first) {
  std::vector<double> values, p99s, ratios;
  int64_t operations = 0;
  for (size_t round = 0; round < series.rounds.size(); ++round) {
    const RpcTurn& turn = series.rounds[round];
    operations += turn.operations;
    values.push_back(rpc_value(series.task, turn));
    p99s.push_back(turn.p99_us);
    ratios.push_back(turn.p50_us / first.rounds.at(round).p50_us);
  }
  const RpcWorkload what = series.task.what;
  Row row{{"what", to_string(what)},
          {"contender", series.contender},
          {"operations", operations},
          {"unit", unit_of(what)},
          {"median", quantile(values, 0.5)},
          {"low", quantile(values, 0)},
          {"high", quantile(values, 1)},
          {"p99_us", what == RpcWorkload::kSmall ? quantile(p99s, 0.5) : 0.0}};
  put_ratios(row, "first_times", ratios);
  return row;
}

// "small: lockstep"
std::string rpc_bar(const Row& row) {
  return row.at("what").get<std::string>() + ": " + row.at("contender").get<std::string>();
}

std::string rpc_number(const Row& row, const char* name) {
  const double value = row.at(name);
  return fixed(value, row.at("what") == "flight" ? 0 : value < 100 ? 2 : 1);
}

}  // namespace

const char* unit_of(RpcWorkload what) {
  switch (what) {
    case RpcWorkload::kSmall:
      return "us p50";
    case RpcWorkload::kFlight:
      return "calls/s";
    default:
      return "GB/s";
  }
}

std::vector<Row> make_rpc_rows(const std::vector<RpcSeries>& all) {
  std::vector<Row> rows;
  for (const RpcSeries& series : all) {
    const auto first = std::find_if(all.begin(), all.end(), [&](const RpcSeries& other) {
      return other.task.what == series.task.what;
    });
    rows.push_back(make_rpc_row(series, *first));
  }
  return rows;
}

std::string rpc_table(const std::vector<Row>& rows) {
  if (rows.empty()) return "";
  const std::string first = rows.front().at("contender");
  const std::vector<Shown<Row>> columns{
      word("what", "what"),
      word("contender", "contender"),
      {same_words("median"), [](const Row& row) { return rpc_number(row, "median"); }},
      word("unit", "unit"),
      {same_words("least-most"),
       [](const Row& row) { return rpc_number(row, "low") + "-" + rpc_number(row, "high"); }},
      {same_words("p99 us"),
       [](const Row& row) {
         return row.at("what") == "small" ? fixed(row.at("p99_us").get<double>(), 1) : "";
       }},
      figure(first + " is so many times as fast", "first_times", 2),
      range("least-most", "first_times")};
  return text_of(without_repeats(sheet_of(columns, rows), 1));
}

std::string rpc_svg(const std::vector<Row>& rows) {
  BarChart chart{.title = "Remote calls",
                 .x_label = "times as long as the fastest of the same thing",
                 .parts = {"time"},
                 .bars = {},
                 .width = 720,
                 .tick = [](double doublings) { return fixed(std::exp2(doublings), 0) + "×"; }};
  for (const Row& row : rows) {
    const double times = row.at("first_times");
    double shortest = times;
    for (const Row& other : rows) {
      if (other.at("what") == row.at("what"))
        shortest = std::min(shortest, other.at("first_times").get<double>());
    }
    chart.bars.push_back(
        {.label = rpc_bar(row),
         .parts = {std::log2(times / shortest)},
         .note = rpc_number(row, "median") + " " + row.at("unit").get<std::string>()});
  }
  return svg_bar_chart(chart);
}

std::vector<RpcWorkload> parse_rpc_workloads(const std::string& text) {
  std::vector<std::string> names;
  for (const RpcWorkload what : kRpcWorkloads) names.emplace_back(to_string(what));
  std::vector<RpcWorkload> whats;
  for (const std::string& name : parse_choices("--what", "thing", text, names))
    whats.push_back(kRpcWorkloads[std::find(names.begin(), names.end(), name) - names.begin()]);
  return whats;
}

}  // namespace lockstep::inline v0::bench
