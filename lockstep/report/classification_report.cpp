#include "lockstep/report/classification_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0 {
namespace {

constexpr size_t kNumberWidth = 9;

// Adds in numpy's order (eight running sums, halves above 128 items), so that means agree to the
// last bit and a report is never rounded differently.
double pairwise_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) return std::accumulate(values.begin(), values.end(), 0.0);
  if (n > 128) {
    const size_t half = n / 2 - n / 2 % 8;
    return pairwise_sum(values.first(half)) + pairwise_sum(values.subspan(half));
  }
  double r[8];
  std::copy_n(values.begin(), 8, r);
  size_t i = 8;
  for (; i < n - n % 8; i += 8) {
    for (size_t k = 0; k < 8; ++k) r[k] += values[i + k];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

double quotient(int64_t above, int64_t below, double zero_division) {
  return below == 0 ? zero_division : static_cast<double>(above) / static_cast<double>(below);
}

double mean(const std::vector<double>& values) {
  std::vector<double> known = values;
  size_t count = 0;
  for (double& value : known) {
    if (std::isnan(value))
      value = 0;
    else
      ++count;
  }
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  return pairwise_sum(known) / static_cast<double>(count);
}

double weighted_mean(const std::vector<double>& values, const std::vector<double>& weights) {
  std::vector<double> products, kept, kept_weights;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) continue;
    kept.push_back(values[i]);
    kept_weights.push_back(weights[i]);
    products.push_back(values[i] * weights[i]);
  }
  const double all = pairwise_sum(kept_weights);
  return all == 0 ? mean(kept) : pairwise_sum(products) / all;
}

using Mean = double (*)(const std::vector<double>&, const std::vector<double>&);

ClassScores average(const std::vector<ClassScores>& classes, Mean mean_of) {
  std::vector<double> weights;
  ClassScores result;
  for (const ClassScores& scores : classes) {
    weights.push_back(static_cast<double>(scores.support));
    result.support += scores.support;
  }
  for (double ClassScores::* field :
       {&ClassScores::precision, &ClassScores::recall, &ClassScores::f1}) {
    std::vector<double> values;
    for (const ClassScores& scores : classes) values.push_back(scores.*field);
    result.*field = mean_of(values, weights);
  }
  return result;
}

// Counts as Python does: every code point is one, however wide it is displayed.
size_t characters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string right(const std::string& text, size_t width) {
  const size_t taken = characters(text);
  return std::string(taken < width ? width - taken : 0, ' ') + text;
}

std::string score(double value, int digits) {
  return right(std::isnan(value) ? "nan" : fixed(value, digits), kNumberWidth);
}

// One line: the name, then cells.
std::string report_line(const std::string& name, size_t width,
                        const std::vector<std::string>& cells) {
  std::string line = right(name, width) + " ";
  for (const std::string& cell : cells) line += " " + right(cell, kNumberWidth);
  return line + "\n";
}

std::string scores_line(const std::string& name, size_t width, const ClassScores& scores,
                        int digits) {
  return report_line(name, width,
                     {score(scores.precision, digits), score(scores.recall, digits),
                      score(scores.f1, digits), std::to_string(scores.support)});
}

nlohmann::ordered_json scores_json(const ClassScores& scores) {
  return {{"precision", scores.precision},
          {"recall", scores.recall},
          {"f1-score", scores.f1},
          {"support", scores.support}};
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(std::vector<std::string> labels)
    : labels_(std::move(labels)), counts_(labels_.size() * labels_.size(), 0) {
  if (labels_.empty()) throw InvalidArgument("ConfusionMatrix: no labels; give at least one");
}

ConfusionMatrix::ConfusionMatrix(std::vector<std::string> labels, std::vector<int64_t> counts)
    : ConfusionMatrix(std::move(labels)) {
  if (counts.size() != counts_.size()) {
    throw InvalidArgument("ConfusionMatrix: " + std::to_string(counts.size()) + " counts for " +
                          std::to_string(labels_.size()) + " labels; give " +
                          std::to_string(counts_.size()));
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] >= 0) continue;
    throw InvalidArgument("ConfusionMatrix: " + std::to_string(counts[i]) + " samples of class '" +
                          labels_[i / classes()] + "' predicted as '" + labels_[i % classes()] +
                          "'; counts are 0 or more");
  }
  counts_ = std::move(counts);
}

void ConfusionMatrix::add(int64_t truth, int64_t predicted) {
  const auto n = static_cast<int64_t>(classes());
  for (const int64_t label : {truth, predicted}) {
    if (label < 0 || label >= n) {
      throw InvalidArgument("ConfusionMatrix::add: class " + std::to_string(label) + " of " +
                            std::to_string(n) + "; classes count from 0");
    }
  }
  ++counts_[static_cast<size_t>(truth * n + predicted)];
}

int64_t ConfusionMatrix::total() const {
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

int64_t ConfusionMatrix::correct() const {
  int64_t sum = 0;
  for (size_t c = 0; c < classes(); ++c) sum += at(c, c);
  return sum;
}

ClassificationReport classification_report(const ConfusionMatrix& matrix, double zero_division) {
  ClassificationReport report;
  report.labels = matrix.labels();
  for (size_t c = 0; c < matrix.classes(); ++c) {
    int64_t truly = 0, predicted = 0;
    for (size_t other = 0; other < matrix.classes(); ++other) {
      truly += matrix.at(c, other);
      predicted += matrix.at(other, c);
    }
    const int64_t right = matrix.at(c, c);
    report.classes.push_back({.precision = quotient(right, predicted, zero_division),
                              .recall = quotient(right, truly, zero_division),
                              .f1 = quotient(2 * right, truly + predicted, zero_division),
                              .support = truly});
  }
  report.accuracy = quotient(matrix.correct(), matrix.total(), zero_division);
  report.macro = average(report.classes, [](const std::vector<double>& values,
                                            const std::vector<double>&) { return mean(values); });
  report.weighted = average(report.classes, weighted_mean);
  return report;
}

std::string to_text(const ClassificationReport& report, int digits) {
  if (digits < 0 || digits > 60) {
    throw InvalidArgument("classification report: " + std::to_string(digits) +
                          " digits; give 0 to 60");
  }
  size_t width = std::max(std::string_view("weighted avg").size(), static_cast<size_t>(digits));
  for (const std::string& label : report.labels) width = std::max(width, characters(label));
  std::string text = report_line("", width, {"precision", "recall", "f1-score", "support"}) + "\n";
  for (size_t c = 0; c < report.classes.size(); ++c)
    text += scores_line(report.labels[c], width, report.classes[c], digits);
  text += "\n" + report_line("accuracy", width,
                             {"", "", score(report.accuracy, digits),
                              std::to_string(report.macro.support)});
  text += scores_line("macro avg", width, report.macro, digits);
  return text + scores_line("weighted avg", width, report.weighted, digits);
}

nlohmann::ordered_json to_json(const ClassificationReport& report) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (size_t c = 0; c < report.classes.size(); ++c)
    json[report.labels[c]] = scores_json(report.classes[c]);
  json["accuracy"] = report.accuracy;
  json["macro avg"] = scores_json(report.macro);
  json["weighted avg"] = scores_json(report.weighted);
  return json;
}

std::string to_text(const ConfusionMatrix& matrix) {
  std::vector<Column> columns{{"true \\ predicted", Align::kLeft}};
  for (const std::string& label : matrix.labels()) columns.push_back({label});
  Table table(std::move(columns));
  for (size_t truth = 0; truth < matrix.classes(); ++truth) {
    std::vector<std::string> cells{matrix.labels()[truth]};
    for (size_t predicted = 0; predicted < matrix.classes(); ++predicted)
      cells.push_back(std::to_string(matrix.at(truth, predicted)));
    table.add(std::move(cells));
  }
  return table.str();
}

}  // namespace lockstep::inline v0
