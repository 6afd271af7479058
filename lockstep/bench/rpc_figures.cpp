#include "lockstep/bench/rpc_figures.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/bench/figures.h"
#include "lockstep/core/errors.h"
#include "lockstep/report/bar_chart.h"
#include "lockstep/report/table.h"

namespace lockstep::bench {
namespace {

constexpr RpcWhat kRpcWhats[] = {RpcWhat::kSmall, RpcWhat::kFlight, RpcWhat::kTensor};

struct RpcSpread {
  double low, median, high;
};

RpcSpread rpc_spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return {values.front(),
          values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2,
          values.back()};
}

double rpc_value(const RpcTask& task, const RpcTurn& turn) {
  switch (task.what) {
    case RpcWhat::kSmall:
      return turn.p50_us;
    case RpcWhat::kFlight:
      return static_cast<double>(task.calls) / turn.p50_us * 1e6;
    default:
      return static_cast<double>(task.bytes) / turn.p50_us / 1e3;
  }
}

RpcRow make_rpc_row(const RpcSeries& series, const RpcSeries& first) {
  std::vector<double> values, p99s, ratios;
  RpcRow row{.what = series.task.what, .contender = series.contender};
  for (size_t round = 0; round < series.rounds.size(); ++round) {
    const RpcTurn& turn = series.rounds[round];
    row.operations += turn.operations;
    values.push_back(rpc_value(series.task, turn));
    p99s.push_back(turn.p99_us);
    ratios.push_back(turn.p50_us / first.rounds.at(round).p50_us);
  }
  const RpcSpread value = rpc_spread(values), ratio = rpc_spread(ratios);
  row.value = value.median;
  row.low = value.low;
  row.high = value.high;
  if (row.what == RpcWhat::kSmall) row.p99_us = rpc_spread(p99s).median;
  row.first_times = ratio.median;
  row.first_times_low = ratio.low;
  row.first_times_high = ratio.high;
  return row;
}

std::string rpc_number(RpcWhat what, double value) {
  return fixed(value, what == RpcWhat::kFlight ? 0 : value < 100 ? 2 : 1);
}

}  // namespace

const char* unit_of(RpcWhat what) {
  switch (what) {
    case RpcWhat::kSmall:
      return "us p50";
    case RpcWhat::kFlight:
      return "calls/s";
    default:
      return "GB/s";
  }
}

std::vector<RpcRow> make_rpc_rows(const std::vector<RpcSeries>& all) {
  std::vector<RpcRow> rows;
  for (const RpcSeries& series : all) {
    const auto first = std::find_if(all.begin(), all.end(), [&](const RpcSeries& other) {
      return other.task.what == series.task.what;
    });
    rows.push_back(make_rpc_row(series, *first));
  }
  return rows;
}

std::string rpc_table(const std::vector<RpcRow>& rows) {
  if (rows.empty()) return "";
  Table table({{"what", Align::kLeft},
               {"contender", Align::kLeft},
               {"median"},
               {"unit", Align::kLeft},
               {"least-most"},
               {"p99 us"},
               {rows.front().contender + " is so many times as fast"},
               {"least-most"}});
  const RpcRow* above = nullptr;
  for (const RpcRow& row : rows) {
    table.add({above != nullptr && above->what == row.what ? "" : to_string(row.what),
               row.contender, rpc_number(row.what, row.value), unit_of(row.what),
               rpc_number(row.what, row.low) + "-" + rpc_number(row.what, row.high),
               row.what == RpcWhat::kSmall ? fixed(row.p99_us, 1) : "", fixed(row.first_times, 2),
               fixed(row.first_times_low, 2) + "-" + fixed(row.first_times_high, 2)});
    above = &row;
  }
  return table.str();
}

std::string rpc_svg(const std::vector<RpcRow>& rows) {
  BarChart chart{.title = "Remote calls",
                 .x_label = "times as long as the fastest of the same thing",
                 .parts = {"time"},
                 .bars = {},
                 .width = 720,
                 .tick = [](double doublings) { return fixed(std::exp2(doublings), 0) + "×"; }};
  for (const RpcRow& row : rows) {
    double shortest = row.first_times;
    for (const RpcRow& other : rows) {
      if (other.what == row.what) shortest = std::min(shortest, other.first_times);
    }
    chart.bars.push_back({.label = std::string(to_string(row.what)) + ": " + row.contender,
                          .parts = {std::log2(row.first_times / shortest)},
                          .note = rpc_number(row.what, row.value) + " " + unit_of(row.what)});
  }
  return svg_bar_chart(chart);
}

nlohmann::ordered_json rpc_json(const std::vector<RpcRow>& rows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const RpcRow& row : rows) {
    json.push_back({{"what", to_string(row.what)},
                    {"contender", row.contender},
                    {"operations", row.operations},
                    {"unit", unit_of(row.what)},
                    {"median", row.value},
                    {"low", row.low},
                    {"high", row.high},
                    {"p99_us", row.p99_us},
                    {"first_times", row.first_times},
                    {"first_times_low", row.first_times_low},
                    {"first_times_high", row.first_times_high}});
  }
  return json;
}

std::vector<RpcWhat> parse_rpc_whats(const std::string& text) {
  std::vector<RpcWhat> whats;
  for (const std::string& name : parse_names("--what", text)) {
    const auto* it = std::find_if(std::begin(kRpcWhats), std::end(kRpcWhats),
                                  [&](RpcWhat what) { return name == to_string(what); });
    if (it == std::end(kRpcWhats))
      throw InvalidArgument("--what has '" + name + "'; choose from small, flight, tensor");
    whats.push_back(*it);
  }
  return whats;
}

}  // namespace lockstep::bench
