#include "lockstep/bench/figures.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/report/line_chart.h"
#include "lockstep/report/table.h"

namespace lockstep::bench {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

constexpr Op kBenchOps[] = {Op::kAllReduce, Op::kBroadcast, Op::kAllGather, Op::kReduceScatter,
                            Op::kAllToAll,  Op::kReduce,    Op::kGather,    Op::kScatter,
                            Op::kBarrier,   Op::kSend};
constexpr at::ScalarType kBenchDtypes[] = {at::kFloat,    at::kDouble, at::kHalf,
                                           at::kBFloat16, at::kChar,   at::kByte,
                                           at::kInt,      at::kLong,   at::kShort};

template <typename T, size_t N, typename Name>
std::vector<T> parse_choices(const std::string& option, const std::string& text,
                             const T (&choices)[N], const Name& name) {
  std::vector<T> result;
  for (const std::string& item : parse_names(option, text)) {
    const auto* it = std::find_if(std::begin(choices), std::end(choices),
                                  [&](T choice) { return item == name(choice); });
    if (it == std::end(choices)) {
      std::string all;
      for (const T choice : choices) all += (all.empty() ? "" : ", ") + std::string(name(choice));
      throw InvalidArgument(option + " has '" + item + "'; choose from " + all);
    }
    result.push_back(*it);
  }
  return result;
}

double percentile(const std::vector<double>& sorted, double fraction) {
  const double at = fraction * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

std::string label(const std::string& backend, bool symmetric) {
  return symmetric ? backend + " symmetric" : backend;
}

bool same_case(const BenchRow& a, const BenchRow& b) {
  return a.op == b.op && a.dtype == b.dtype && a.asked == b.asked && a.nproc == b.nproc;
}

// Three figures that matter, whatever the magnitude.
std::string short_number(double value) {
  return fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

}  // namespace

bool BenchCase::in_parts() const {
  return op == Op::kGather || op == Op::kAllGather || op == Op::kScatter ||
         op == Op::kReduceScatter || op == Op::kAllToAll;
}

int64_t BenchCase::part() const {
  if (op == Op::kBarrier) return 0;
  const int64_t elements =
      std::max<int64_t>(1, asked / static_cast<int64_t>(c10::elementSize(dtype)));
  return in_parts() ? std::max<int64_t>(1, elements / nproc) : elements;
}

int64_t BenchCase::whole() const {
  return in_parts() ? part() * nproc : part();
}

int64_t BenchCase::whole_bytes() const {
  return whole() * static_cast<int64_t>(c10::elementSize(dtype));
}

BenchRow make_row(const BenchCase& c, const std::string& backend, bool symmetric,
                  std::vector<double> samples_us, int64_t batch) {
  std::sort(samples_us.begin(), samples_us.end());
  BenchRow row;
  row.op = c.op;
  row.backend = backend;
  row.symmetric = symmetric;
  row.dtype = c.dtype;
  row.nproc = c.nproc;
  row.asked = c.asked;
  row.bytes = c.whole_bytes();
  row.operations = static_cast<int64_t>(samples_us.size()) * batch;
  row.mean_us = std::accumulate(samples_us.begin(), samples_us.end(), 0.0) /
                static_cast<double>(samples_us.size());
  row.p50_us = percentile(samples_us, 0.5);
  row.p95_us = percentile(samples_us, 0.95);
  if (row.p50_us > 0) row.algbw_gbps = static_cast<double>(row.bytes) / row.p50_us / 1e3;
  row.busbw_gbps = row.algbw_gbps * bus_factor(c.op, c.nproc);
  return row;
}

double bus_factor(Op op, int nproc) {
  const double n = nproc;
  switch (op) {
    case Op::kAllReduce:
      return 2 * (n - 1) / n;
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllToAll:
    case Op::kGather:
    case Op::kScatter:
      return (n - 1) / n;
    default:
      return 1;
  }
}

void compare_to_first(std::vector<BenchRow>& rows) {
  for (BenchRow& row : rows) {
    const auto first = std::find_if(rows.begin(), rows.end(),
                                    [&](const BenchRow& other) { return same_case(row, other); });
    const double base = first->p50_us;
    row.times_first = base > 0 ? row.p50_us / base : 0;
  }
}

std::vector<BenchFit> fit_rows(const std::vector<BenchRow>& rows) {
  std::vector<BenchFit> fits;
  const auto same_line = [](const auto& a, const auto& b) {
    return a.op == b.op && a.backend == b.backend && a.symmetric == b.symmetric &&
           a.dtype == b.dtype && a.nproc == b.nproc;
  };
  for (const BenchRow& start : rows) {
    if (std::any_of(fits.begin(), fits.end(), [&](const auto& f) { return same_line(f, start); }))
      continue;
    // Weighted least squares of t = a + b x with weights 1 / t^2: the normal equations.
    double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
    int points = 0;
    for (const BenchRow& row : rows) {
      const double t = row.p50_us;
      if (!same_line(row, start) || t <= 0) continue;
      const double weight = 1 / (t * t);
      const double x = static_cast<double>(row.bytes) / kMiB;
      w += weight;
      wx += weight * x;
      wxx += weight * x * x;
      wt += weight * t;
      wxt += weight * x * t;
      ++points;
    }
    const double determinant = w * wxx - wx * wx;
    if (points < 2 || determinant <= 0) continue;
    BenchFit fit{start.op, start.backend, start.symmetric, start.dtype, start.nproc};
    fit.beta_us_per_mib = std::max(0.0, (w * wxt - wx * wt) / determinant);
    fit.alpha_us = std::max(0.0, (wt - fit.beta_us_per_mib * wx) / w);
    fits.push_back(fit);
  }
  return fits;
}

std::vector<std::string> parse_names(const std::string& option, const std::string& text) {
  std::vector<std::string> names;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    if (item.empty()) throw InvalidArgument(option + " has an empty name; write it as a,b,c");
    if (std::find(names.begin(), names.end(), item) == names.end()) names.push_back(item);
  }
  if (names.empty()) throw InvalidArgument(option + " is empty; give names with commas");
  return names;
}

std::vector<int64_t> parse_byte_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const std::string& item : parse_names("--sizes", text)) {
    std::string digits = item;
    int64_t unit = 1;
    switch (item.back()) {
      case 'k':
      case 'K':
        unit = int64_t{1} << 10;
        break;
      case 'm':
      case 'M':
        unit = int64_t{1} << 20;
        break;
      case 'g':
      case 'G':
        unit = int64_t{1} << 30;
        break;
      default:
        break;
    }
    if (unit > 1) digits.pop_back();
    const auto value = parse_int(digits, 1, (int64_t{64} << 30) / unit);
    if (!value) {
      throw InvalidArgument("--sizes has '" + item +
                            "'; give bytes from 1 to 64G with commas, such as 4,1K,64K,1M,25M");
    }
    sizes.push_back(*value * unit);
  }
  return sizes;
}

std::string byte_text(int64_t bytes) {
  for (const auto& [unit, name] :
       {std::pair{int64_t{1} << 30, "GiB"}, {int64_t{1} << 20, "MiB"}, {int64_t{1} << 10, "KiB"}}) {
    if (bytes >= unit && bytes % unit == 0) return std::to_string(bytes / unit) + " " + name;
  }
  return std::to_string(bytes) + " B";
}

std::vector<Op> parse_ops(const std::string& text) {
  return parse_choices("--ops", text, kBenchOps, [](Op op) { return to_string(op); });
}

std::vector<at::ScalarType> parse_dtypes(const std::string& text) {
  return parse_choices("--dtypes", text, kBenchDtypes,
                       [](at::ScalarType dtype) { return dtype_name(dtype); });
}

std::vector<int> parse_nprocs(const std::string& text) {
  std::vector<int> nprocs;
  for (const std::string& item : parse_names("--nproc", text)) {
    const auto value = parse_int(item, 1, 1024);
    if (!value)
      throw InvalidArgument("--nproc has '" + item + "'; give 1 to 1024, or several with commas");
    nprocs.push_back(static_cast<int>(*value));
  }
  return nprocs;
}

std::string bench_table(const std::vector<BenchRow>& rows) {
  if (rows.empty()) return "";
  Table table({{"ranks"},
               {"operation", Align::kLeft},
               {"dtype", Align::kLeft},
               {"size"},
               {"backend", Align::kLeft},
               {"mean us"},
               {"p50 us"},
               {"p95 us"},
               {"algbw GB/s"},
               {"busbw GB/s"},
               {"times " + label(rows[0].backend, rows[0].symmetric)}});
  const BenchRow* above = nullptr;
  for (const BenchRow& row : rows) {
    const bool repeats = above != nullptr && same_case(*above, row);
    table.add({repeats ? "" : std::to_string(row.nproc), repeats ? "" : to_string(row.op),
               repeats ? "" : dtype_name(row.dtype), repeats ? "" : byte_text(row.bytes),
               label(row.backend, row.symmetric), short_number(row.mean_us),
               short_number(row.p50_us), short_number(row.p95_us), fixed(row.algbw_gbps, 3),
               fixed(row.busbw_gbps, 3), fixed(row.times_first, 2)});
    above = &row;
  }
  return table.str();
}

std::string library_lines(const std::vector<BenchRow>& rows) {
  std::map<std::string, std::vector<std::string>> backends;  // by library
  for (const BenchRow& row : rows) {
    if (row.library.empty()) continue;
    auto& names = backends[row.library];
    if (std::find(names.begin(), names.end(), row.backend) == names.end())
      names.push_back(row.backend);
  }
  std::string text;
  for (const auto& [library, names] : backends) {
    for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : ", ") + names[i];
    text += ": " + library + "\n";
  }
  return text;
}

std::string fit_table(const std::vector<BenchFit>& fits) {
  if (fits.empty()) return "";
  Table table({{"ranks"},
               {"operation", Align::kLeft},
               {"dtype", Align::kLeft},
               {"backend", Align::kLeft},
               {"alpha us"},
               {"beta us/MiB"},
               {"limit GB/s"}});
  for (const BenchFit& fit : fits) {
    table.add({std::to_string(fit.nproc), to_string(fit.op), dtype_name(fit.dtype),
               label(fit.backend, fit.symmetric), short_number(fit.alpha_us),
               fixed(fit.beta_us_per_mib, 2),
               fit.beta_us_per_mib > 0 ? fixed(kMiB / fit.beta_us_per_mib / 1e3, 2) : "-"});
  }
  return table.str();
}

std::string bench_svg(const std::vector<BenchRow>& rows) {
  std::vector<ChartPanel> panels;
  for (const BenchRow& row : rows) {
    if (row.bytes == 0) continue;
    const std::string title = std::string(to_string(row.op)) + " " + dtype_name(row.dtype) + ", " +
                              std::to_string(row.nproc) + (row.nproc == 1 ? " rank" : " ranks");
    auto panel =
        std::find_if(panels.begin(), panels.end(), [&](const auto& p) { return p.title == title; });
    if (panel == panels.end()) {
      panels.push_back(
          {.title = title, .x_label = "size", .y_label = "bus bandwidth, GB/s", .series = {}});
      panels.back().x_integers = true;
      panels.back().x_tick = [](double log2) {
        return byte_text(int64_t{1} << std::llround(log2));
      };
      panel = panels.end() - 1;
    }
    const std::string name = label(row.backend, row.symmetric);
    auto series = std::find_if(panel->series.begin(), panel->series.end(),
                               [&](const Series& s) { return s.name == name; });
    if (series == panel->series.end()) {
      panel->series.push_back({name, {}, {}});
      series = panel->series.end() - 1;
    }
    series->x.push_back(std::log2(static_cast<double>(row.bytes)));
    series->y.push_back(row.busbw_gbps);
  }
  return svg_line_chart(panels, {.title = "Collectives"});
}

nlohmann::ordered_json bench_json(const std::vector<BenchRow>& rows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    json.push_back({{"op", to_string(row.op)},
                    {"backend", row.backend},
                    {"symmetric", row.symmetric},
                    {"dtype", dtype_name(row.dtype)},
                    {"nproc", row.nproc},
                    {"bytes", row.bytes},
                    {"mean_us", row.mean_us},
                    {"p50_us", row.p50_us},
                    {"p95_us", row.p95_us},
                    {"algbw_GBps", row.algbw_gbps},
                    {"busbw_GBps", row.busbw_gbps},
                    {"times_first", row.times_first},
                    {"operations", row.operations},
                    {"others_cpus", row.others_cpus},
                    {"size", row.asked},
                    {"library", row.library}});
  }
  return json;
}

std::vector<BenchRow> read_bench_json(const nlohmann::json& json) {
  std::vector<BenchRow> rows;
  for (const nlohmann::json& from : json) {
    BenchRow row;
    row.op = parse_ops(from.at("op")).front();
    row.backend = from.at("backend");
    row.symmetric = from.at("symmetric");
    row.dtype = parse_dtypes(from.at("dtype")).front();
    row.nproc = from.at("nproc");
    row.asked = from.at("size");
    row.bytes = from.at("bytes");
    row.operations = from.at("operations");
    row.mean_us = from.at("mean_us");
    row.p50_us = from.at("p50_us");
    row.p95_us = from.at("p95_us");
    row.algbw_gbps = from.at("algbw_GBps");
    row.busbw_gbps = from.at("busbw_GBps");
    row.times_first = from.at("times_first");
    row.others_cpus = from.at("others_cpus");
    row.library = from.at("library");
    rows.push_back(row);
  }
  return rows;
}

nlohmann::ordered_json fit_json(const std::vector<BenchFit>& fits) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const BenchFit& fit : fits) {
    json.push_back({{"op", to_string(fit.op)},
                    {"backend", fit.backend},
                    {"symmetric", fit.symmetric},
                    {"dtype", dtype_name(fit.dtype)},
                    {"nproc", fit.nproc},
                    {"alpha_us", fit.alpha_us},
                    {"beta_us_per_MiB", fit.beta_us_per_mib}});
  }
  return json;
}

}  // namespace lockstep::bench
