#include "lockstep/bench/figures.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <numeric>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/quantile.h"
#include "lockstep/core/text.h"
#include "lockstep/report/line_chart.h"

namespace lockstep::inline v0::bench {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

constexpr Op kBenchOps[] = {Op::kAllReduce, Op::kBroadcast, Op::kAllGather, Op::kReduceScatter,
                            Op::kAllToAll,  Op::kReduce,    Op::kGather,    Op::kScatter,
                            Op::kBarrier,   Op::kSend};
constexpr at::ScalarType kBenchDtypes[] = {at::kFloat,    at::kDouble, at::kHalf,
                                           at::kBFloat16, at::kChar,   at::kByte,
                                           at::kInt,      at::kLong,   at::kShort};

template <typename T, size_t N, typename Name>
std::vector<T> parse_values(const std::string& option, const std::string& kind,
                            const std::string& text, const T (&values)[N], const Name& name) {
  std::vector<std::string> names;
  for (const T value : values) names.emplace_back(name(value));
  std::vector<T> result;
  for (const std::string& item : parse_choices(option, kind, text, names))
    result.push_back(values[std::find(names.begin(), names.end(), item) - names.begin()]);
  return result;
}

bool same(const Row& a, const Row& b, std::initializer_list<const char*> names) {
  return std::all_of(names.begin(), names.end(),
                     [&](const char* name) { return a.at(name) == b.at(name); });
}

std::string label(const Row& row) {
  return row.at("backend").get<std::string>() +
         (row.at("symmetric").get<bool>() ? " symmetric" : "");
}

std::string ranks_of(const Row& row) {
  return std::to_string(row.at("nproc").get<int>());
}

Shown<Row> backend_column() {
  return {same_words("backend"), label, Align::kLeft};
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

Row make_row(const BenchCase& c, const std::string& backend, bool symmetric,
             const std::vector<double>& samples_us, int64_t batch) {
  const auto count = static_cast<double>(samples_us.size());
  const double p50 = quantile(samples_us, 0.5);
  const auto bytes = static_cast<double>(c.whole_bytes());
  const double algbw = p50 > 0 ? bytes / p50 / 1e3 : 0;
  return {{"op", to_string(c.op)},
          {"backend", backend},
          {"symmetric", symmetric},
          {"dtype", dtype_name(c.dtype)},
          {"nproc", c.nproc},
          {"bytes", c.whole_bytes()},
          {"mean_us", std::accumulate(samples_us.begin(), samples_us.end(), 0.0) / count},
          {"p50_us", p50},
          {"p95_us", quantile(samples_us, 0.95)},
          {"algbw_GBps", algbw},
          {"busbw_GBps", algbw * bus_factor(c.op, c.nproc)},
          {"times_first", 1.0},
          {"operations", static_cast<int64_t>(samples_us.size()) * batch},
          {"others_cpus", 0.0},
          {"size", c.asked},
          {"library", ""}};
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

void compare_to_first(std::vector<Row>& rows) {
  for (Row& row : rows) {
    const auto first = std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
      return same(row, other, {"op", "dtype", "size", "nproc"});
    });
    const double base = first->at("p50_us");
    row["times_first"] = base > 0 ? row.at("p50_us").get<double>() / base : 0.0;
  }
}

std::vector<Row> fit_rows(const std::vector<Row>& rows) {
  std::vector<Row> fits;
  const auto same_line = [](const Row& a, const Row& b) {
    return same(a, b, {"op", "backend", "symmetric", "dtype", "nproc"});
  };
  for (const Row& start : rows) {
    if (std::any_of(fits.begin(), fits.end(), [&](const Row& f) { return same_line(f, start); }))
      continue;
    // Weighted least squares of t = a + b x with weights 1 / t^2: the normal equations.
    double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
    int points = 0;
    for (const Row& row : rows) {
      const double t = row.at("p50_us");
      if (!same_line(row, start) || t <= 0) continue;
      const double weight = 1 / (t * t);
      const double x = row.at("bytes").get<double>() / kMiB;
      w += weight;
      wx += weight * x;
      wxx += weight * x * x;
      wt += weight * t;
      wxt += weight * x * t;
      ++points;
    }
    const double determinant = w * wxx - wx * wx;
    if (points < 2 || determinant <= 0) continue;
    Row fit;
    for (const char* name : {"op", "backend", "symmetric", "dtype", "nproc"})
      fit[name] = start.at(name);
    const double beta = std::max(0.0, (w * wxt - wx * wt) / determinant);
    fit["alpha_us"] = std::max(0.0, (wt - beta * wx) / w);
    fit["beta_us_per_MiB"] = beta;
    fits.push_back(std::move(fit));
  }
  return fits;
}

std::vector<int64_t> parse_byte_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const std::string& item : parse_names("--sizes", text)) {
    constexpr std::string_view kUnits = "KMG";
    std::string digits = item;
    const size_t power = kUnits.find(static_cast<char>(std::toupper(item.back())));
    const int64_t unit = power == std::string_view::npos ? 1 : int64_t{1} << (10 * (power + 1));
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
  return parse_values("--ops", "operation", text, kBenchOps, [](Op op) { return to_string(op); });
}

std::vector<at::ScalarType> parse_dtypes(const std::string& text) {
  return parse_values("--dtypes", "dtype", text, kBenchDtypes,
                      [](at::ScalarType dtype) { return dtype_name(dtype); });
}

std::string bench_table(const std::vector<Row>& rows) {
  if (rows.empty()) return "";
  const std::vector<Shown<Row>> columns{
      {same_words("ranks"), ranks_of},
      word("operation", "op"),
      word("dtype", "dtype"),
      {same_words("size"), [](const Row& row) { return byte_text(row.at("bytes")); }},
      backend_column(),
      figure("mean us", "mean_us", short_number),
      figure("p50 us", "p50_us", short_number),
      figure("p95 us", "p95_us", short_number),
      figure("algbw GB/s", "algbw_GBps", 3),
      figure("busbw GB/s", "busbw_GBps", 3),
      figure("times " + label(rows[0]), "times_first", 2)};
  return text_of(without_repeats(sheet_of(columns, rows), 4));
}

std::string library_lines(const std::vector<Row>& rows) {
  std::map<std::string, std::vector<std::string>> backends;  // by library
  for (const Row& row : rows) {
    const std::string library = row.at("library"), backend = row.at("backend");
    if (library.empty()) continue;
    auto& names = backends[library];
    if (std::find(names.begin(), names.end(), backend) == names.end()) names.push_back(backend);
  }
  std::string text;
  for (const auto& [library, names] : backends) text += joined(names) + ": " + library + "\n";
  return text;
}

std::string fit_table(const std::vector<Row>& fits) {
  if (fits.empty()) return "";
  const auto limit = [](double beta) { return beta > 0 ? fixed(kMiB / beta / 1e3, 2) : "-"; };
  return text_of(sheet_of(std::vector<Shown<Row>>{{same_words("ranks"), ranks_of},
                                                  word("operation", "op"),
                                                  word("dtype", "dtype"),
                                                  backend_column(),
                                                  figure("alpha us", "alpha_us", short_number),
                                                  figure("beta us/MiB", "beta_us_per_MiB", 2),
                                                  figure("limit GB/s", "beta_us_per_MiB", limit)},
                          fits));
}

std::string bench_svg(const std::vector<Row>& rows) {
  std::vector<ChartPanel> panels;
  for (const Row& row : rows) {
    if (row.at("bytes") == 0) continue;
    const std::string title = row.at("op").get<std::string>() + " " +
                              row.at("dtype").get<std::string>() + ", " + ranks_of(row) +
                              (row.at("nproc") == 1 ? " rank" : " ranks");
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
    auto series = std::find_if(panel->series.begin(), panel->series.end(),
                               [&](const Series& s) { return s.name == label(row); });
    if (series == panel->series.end()) {
      panel->series.push_back({label(row), {}, {}});
      series = panel->series.end() - 1;
    }
    series->x.push_back(std::log2(row.at("bytes").get<double>()));
    series->y.push_back(row.at("busbw_GBps"));
  }
  return svg_line_chart(panels, {.title = "Collectives"});
}

}  // namespace lockstep::inline v0::bench
