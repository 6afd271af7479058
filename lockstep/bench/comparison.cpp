#include "lockstep/bench/comparison.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/bench/comparison_cells.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::bench {
namespace {

using Json = nlohmann::ordered_json;

Json method_json(const Comparison& comparison, const ComparedMethod& method) {
  Json json{{"method", method.method}, {"tutorial", method.tutorial}};
  if (!method.result) {
    json["failure"] = method.failure;
    return json;
  }
  json.update(to_json(*method.result));
  json["method"] = method.method;
  if (const auto times = speedup(comparison, *method.result)) json["speedup"] = *times;
  json["peak_memory_mib_by_rank"] = method.result->peak_memory_mib;
  const auto peak = peak_memory_mib(*method.result);
  json["peak_memory_mib"] = peak ? Json(*peak) : Json();
  json["first_losses"] = first_losses(*method.result);
  return json;
}

Json scaling_json(const ScalingSeries& series) {
  Json runs = Json::array();
  for (const RunResult& run : series.runs) {
    const RunResult& first = series.runs.front();
    const double times = first.samples_per_s > 0 ? run.samples_per_s / first.samples_per_s : 0;
    runs.push_back({{"nproc", run.nproc},
                    {"steps", run.steps},
                    {"samples", run.samples},
                    {"seconds", run.seconds},
                    {"samples_per_s", run.samples_per_s},
                    {"speedup", times},
                    {"efficiency",
                     times * static_cast<double>(first.nproc) / static_cast<double>(run.nproc)}});
  }
  return {{"method", series.method}, {"runs", runs}};
}

}  // namespace

bool has_tutorial(const Comparison& comparison) {
  return std::any_of(comparison.methods.begin(), comparison.methods.end(),
                     [](const ComparedMethod& method) { return !method.tutorial.empty(); });
}

const RunResult* find_result(const Comparison& comparison, const std::string& method) {
  for (const ComparedMethod& one : comparison.methods) {
    if (one.method == method) return one.result ? &*one.result : nullptr;
  }
  return nullptr;
}

std::optional<double> speedup(const Comparison& comparison, const RunResult& result) {
  const RunResult* single = find_result(comparison, "single");
  if (single == nullptr || !(single->samples_per_s > 0)) return std::nullopt;
  return result.samples_per_s / single->samples_per_s;
}

std::optional<double> peak_memory_mib(const RunResult& result) {
  if (result.peak_memory_mib.empty()) return std::nullopt;
  return *std::max_element(result.peak_memory_mib.begin(), result.peak_memory_mib.end());
}

std::vector<double> first_losses(const RunResult& result, size_t count) {
  const auto end = std::min(count, result.losses.size());
  return {result.losses.begin(), result.losses.begin() + static_cast<ptrdiff_t>(end)};
}

std::string comparison_table(const Comparison& comparison) {
  return text_of(figures_sheet(comparison, false));
}

nlohmann::ordered_json to_json(const Comparison& comparison) {
  Json methods = Json::array(), scaling = Json::array();
  for (const ComparedMethod& method : comparison.methods)
    methods.push_back(method_json(comparison, method));
  for (const ScalingSeries& series : comparison.scaling) scaling.push_back(scaling_json(series));
  Json json{{"subject", comparison.subject},
            {"model", comparison.model},
            {"data", comparison.data},
            {"recipe", comparison.recipe},
            {"nproc", comparison.nproc},
            {"threads_per_rank", comparison.threads_per_rank},
            {"processors", comparison.processors},
            {"processor", comparison.processor},
            {"date", comparison.date},
            {"held_out", comparison.held_out},
            {"perplexity", comparison.perplexity},
            {"methods", methods}};
  if (!comparison.scaling.empty()) json["scaling"] = scaling;
  return json;
}

std::string comparison_markdown(const Comparison& comparison) {
  Sheet losses{
      .columns = {{same_words("method"), Align::kLeft}, {same_words("first losses"), Align::kLeft}},
      .rows = {}};
  std::string failures;
  for (const ComparedMethod& method : comparison.methods) {
    if (method.result)
      losses.rows.push_back({method.method, joined(loss_cells(*method.result), " ")});
    else
      failures += "\n" + method.method + " failed: " + method.failure + "\n";
  }
  const ComparisonWords words = comparison_words(comparison);
  return "# " + words.title.en + "\n\n" + words.settings.en + "\n\n" +
         markdown_of(figures_sheet(comparison, has_tutorial(comparison))) + failures + "\n" +
         words.remarks.en + "\n\n" + markdown_of(losses);
}

}  // namespace lockstep::inline v0::bench
