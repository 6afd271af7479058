#include "lockstep/bench/comparison_cells.h"

#include <algorithm>
#include <cmath>

#include "lockstep/report/run_report.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::bench {
namespace {

std::string optional_cell(const std::optional<double>& value, int digits) {
  return value && std::isfinite(*value) ? fixed(*value, digits) : "-";
}

std::string plural(int64_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

const ComparedMethod* fastest(const Comparison& comparison) {
  const ComparedMethod* best = nullptr;
  for (const ComparedMethod& method : comparison.methods) {
    if (!method.result) continue;
    if (best == nullptr || method.result->samples_per_s > best->result->samples_per_s)
      best = &method;
  }
  return best;
}

// Whether times cannot be compared, because --max-steps counts steps, and more ranks take more
// samples per step.
bool samples_differ(const Comparison& comparison) {
  int64_t least = INT64_MAX, most = 0;
  for (const ComparedMethod& method : comparison.methods) {
    if (!method.result) continue;
    least = std::min(least, method.result->samples);
    most = std::max(most, method.result->samples);
  }
  return static_cast<double>(most) > 1.05 * static_cast<double>(least);
}

Words settings(const Comparison& c) {
  Words words{"Model " + c.model + ", " + plural(c.nproc, "rank") + " of " +
                  plural(c.threads_per_rank, "thread") + ", data " + c.data + ", " +
                  (c.recipe.empty() ? "the default recipe" : "recipe " + c.recipe) + ".",
              "模型 " + c.model + "，" + std::to_string(c.nproc) + " 个 rank，每个 " +
                  std::to_string(c.threads_per_rank) + " 个线程，数据 " + c.data + "，" +
                  (c.recipe.empty() ? "默认配方" : "配方 " + c.recipe) + "。"};
  if (c.processors > 0) {
    const bool named = !c.processor.empty();
    words.en += " " + plural(c.processors, "processor") + (named ? " (" + c.processor + ")." : ".");
    words.zh +=
        std::to_string(c.processors) + " 个处理器" + (named ? "（" + c.processor + "）。" : "。");
  }
  if (!c.date.empty()) {
    words.en += " " + c.date + ".";
    words.zh += c.date + "。";
  }
  return words;
}

Words remarks(const Comparison& comparison) {
  const ComparedMethod* best = fastest(comparison);
  if (best == nullptr) return {"No method has a result.", "没有任何方法得到结果。"};
  const std::string rate = fixed(best->result->samples_per_s, 1);
  const Words counted = counted_name(comparison);
  Words words{"Fastest: " + best->method + ", " + rate + " " + counted.en + "/s",
              "最快：" + best->method + "，每秒" + counted.zh + "数 " + rate};
  const auto times = speedup(comparison, *best->result);
  if (times && best->method != "single") {
    words.en += ", " + fixed(*times, 2) + "× single";
    words.zh += "，是 single 的 " + fixed(*times, 2) + " 倍";
  }
  words.en += ".";
  words.zh += "。";
  if (samples_differ(comparison)) {
    words.en += " The methods did not train on the same number of " + counted.en + ", so compare " +
                counted.en + "/s, not times.";
    words.zh +=
        "各方法训练的" + counted.zh + "数不同，请比较每秒" + counted.zh + "数，不要比较时间。";
  }
  return words;
}

}  // namespace

Words counted_name(const Comparison& comparison) {
  return comparison.perplexity ? Words{"tokens", " token "} : Words{"samples", "样本"};
}

TimeUnit time_unit(const Comparison& comparison) {
  constexpr double kManySeconds = 180;
  double longest = 0;
  for (const ComparedMethod& method : comparison.methods)
    if (method.result) longest = std::max(longest, method.result->seconds);
  if (longest < kManySeconds) return {{"seconds", "秒"}, 1};
  return {{"minutes", "分钟"}, 60};
}

std::string time_text(const TimeUnit& unit, double seconds) {
  const double time = seconds / unit.seconds;
  return fixed(time, unit.seconds == 1 && time >= 10 ? 1 : 2);
}

Words score_name(const Comparison& comparison) {
  return {comparison.held_out + (comparison.perplexity ? " perplexity" : " accuracy"),
          held_out_words(comparison.held_out).zh + (comparison.perplexity ? "困惑度" : "准确率")};
}

std::optional<double> score_of(const Comparison& comparison, const RunResult& result) {
  if (!comparison.perplexity) return result.dev_accuracy;
  if (!result.dev_loss) return std::nullopt;
  return std::exp(*result.dev_loss);
}

std::vector<std::string> loss_cells(const RunResult& result) {
  std::vector<std::string> cells;
  for (const double loss : first_losses(result))
    cells.push_back(std::isfinite(loss) ? fixed(loss, 6) : "nan");
  return cells;
}

Sheet figures_sheet(const Comparison& comparison, bool tutorial) {
  using Method = ComparedMethod;
  const auto shown = [](Words title, auto text) {
    return Shown<Method>{std::move(title), [text](const Method& method) {
                           return method.result ? text(*method.result) : std::string("-");
                         }};
  };
  const TimeUnit unit = time_unit(comparison);
  const Words counted = counted_name(comparison);
  std::vector<Shown<Method>> columns{
      {{"method", "方法"}, [](const Method& method) { return method.method; }, Align::kLeft},
      {unit.name,
       [&unit](const Method& method) {
         return method.result ? time_text(unit, method.result->seconds) : "failed";
       }},
      shown({"speed-up", "加速比"},
            [&](const RunResult& run) { return optional_cell(speedup(comparison, run), 2); }),
      shown({counted.en + "/s", "每秒" + counted.zh + "数"},
            [](const RunResult& run) { return fixed(run.samples_per_s, 1); }),
      shown({"steps", "步数"}, [](const RunResult& run) { return std::to_string(run.steps); }),
      shown({"MiB a rank", "每 rank 内存 MiB"},
            [](const RunResult& run) { return optional_cell(peak_memory_mib(run), 0); }),
      shown(score_name(comparison),
            [&](const RunResult& run) {
              return optional_cell(score_of(comparison, run), comparison.perplexity ? 3 : 4);
            }),
      shown({"macro F1", "宏平均 F1"},
            [](const RunResult& run) { return optional_cell(run.macro_f1, 4); })};
  if (tutorial) {
    columns.insert(columns.begin() + 1,
                   Shown<Method>{{"in the tutorial", "教程中的名字"},
                                 [](const Method& method) { return method.tutorial; },
                                 Align::kLeft});
  }
  return sheet_of(columns, comparison.methods);
}

ComparisonWords comparison_words(const Comparison& comparison) {
  const auto count = static_cast<int64_t>(comparison.methods.size());
  // Other subjects are named by their model.
  const Words subject = comparison.subject == "language model"
                            ? Words{"a language model", "语言模型"}
                            : Words{comparison.subject, " " + comparison.subject + " "};
  return {.title = {plural(count, "way") + " to train " + subject.en,
                    "训练" + subject.zh + "的 " + std::to_string(count) + " 种方法"},
          .settings = settings(comparison),
          .remarks = remarks(comparison)};
}

}  // namespace lockstep::inline v0::bench
