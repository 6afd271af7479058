#include "lockstep/bench/comparison_page.h"

#include <algorithm>
#include <cmath>

#include "lockstep/bench/comparison_cells.h"
#include "lockstep/report/bar_chart.h"
#include "lockstep/report/line_chart.h"
#include "lockstep/report/run_report.h"
#include "lockstep/report/svg.h"

namespace lockstep::inline v0::bench {
namespace {

ChartOptions panel_options() {
  return {.title = {}, .panel_width = 480, .panel_height = 330};
}

// A picture in English and in Chinese; draw(word) gets a function that chooses between the two
// texts.
template <typename Draw>
Words both(Draw draw) {
  return {draw([](const char* en, const char*) { return std::string(en); }),
          draw([](const char*, const char* zh) { return std::string(zh); })};
}

// Draws running means over a twentieth of the run against samples, thinned to the picture's
// resolution.
Series loss_curve(const RunResult& result, const std::string& name) {
  constexpr size_t kMostPoints = 240;
  const size_t steps = result.losses.size();
  const size_t window = std::max<size_t>(1, steps / 20);
  const size_t stride = steps / kMostPoints + 1;
  const double samples_a_step =
      steps == 0 ? 0 : static_cast<double>(result.samples) / static_cast<double>(steps);
  Series series{.name = name, .x = {}, .y = {}};
  for (size_t i = 0; i < steps; ++i) {
    if (i % stride != 0 && i + 1 != steps) continue;
    double sum = 0, count = 0;
    for (size_t k = i + 1 > window ? i + 1 - window : 0; k <= i; ++k) {
      if (!std::isfinite(result.losses[k])) continue;
      sum += result.losses[k];
      ++count;
    }
    series.x.push_back(static_cast<double>(i + 1) * samples_a_step);
    series.y.push_back(sum / count);  // NaN if there is none, which is left out
  }
  return series;
}

double milliseconds_a_step(double seconds, const RunResult& result) {
  return result.steps > 0 ? 1000 * seconds / static_cast<double>(result.steps) : 0;
}

// The further figures of each run, and its first losses.
Sheet runs_sheet(const Comparison& comparison) {
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  Sheet sheet{.columns = {{{"method", "方法"}, Align::kLeft},
                          {{"dtype", "数值类型"}, Align::kLeft},
                          {{"padding", "填充"}, Align::kLeft},
                          {{"start (s)", "启动（秒）"}}},
              .rows = {}};
  size_t columns = sheet.columns.size() + 1;
  for (const ComparedMethod& method : comparison.methods) {
    if (!method.result) continue;
    const RunResult& run = *method.result;
    auto& row = sheet.rows.emplace_back(
        std::vector<std::string>{method.method, or_dash(run.dtype), or_dash(run.padding),
                                 run.startup_s ? fixed(*run.startup_s, 2) : "-"});
    for (std::string& loss : loss_cells(run)) row.push_back(std::move(loss));
    columns = std::max(columns, row.size());
  }
  for (size_t i = 1; sheet.columns.size() < columns; ++i)
    sheet.columns.push_back({{"loss " + std::to_string(i), "损失 " + std::to_string(i)}});
  for (auto& row : sheet.rows) row.resize(columns, "-");
  return sheet;
}

void put_reports(HtmlPage& page, const Comparison& comparison) {
  bool headed = false;
  for (const ComparedMethod& method : comparison.methods) {
    if (!method.result || !method.result->confusion) continue;
    if (!headed) page.heading({"Class by class", "各类别的结果"});
    headed = true;
    const ConfusionMatrix& matrix = *method.result->confusion;
    page.folded(same_words(method.method),
                to_text(classification_report(matrix)) + "\n" + to_text(matrix));
  }
}

void put_terms(HtmlPage& page, const Comparison& comparison) {
  const Words score = score_name(comparison), counted = counted_name(comparison);
  page.heading({"How to read it", "怎样读这一页"});
  page.terms(
      {{time_unit(comparison).name,
        {"from the first step's start to the last one's end, without evaluations",
         "从第一步开始到最后一步结束，不含评估"}},
       {{"speed-up", "加速比"},
        {counted.en + " a second over those of single", "每秒" + counted.zh + "数与 single 之比"}},
       {{"MiB a rank", "每 rank 内存"},
        {"the most memory that one rank has held", "占用最多的那个 rank 的内存峰值"}},
       {{score.en + ", macro F1", score.zh + "、宏平均 F1"},
        {"on the " + comparison.held_out + " set at the end, each of its " + counted.en +
             " counted once",
         "训练结束时在" + held_out_words(comparison.held_out).zh + "上的结果，每个" + counted.zh +
             "只计一次"}},
       {{"start", "启动"},
        {"from the command to the first step's start", "从执行命令到第一步开始"}},
       {{"waiting", "等待通信"},
        {"what backward did not hide of the ranks' communication, and of their waiting for each "
         "other",
         "反向传播没能掩盖的通信时间，以及各 rank 互相等待的时间"}}});
}

}  // namespace

Words time_picture(const Comparison& comparison) {
  return both([&](auto word) {
    const TimeUnit unit = time_unit(comparison);
    BarChart chart{.title = word("Training time", "训练时间"),
                   .x_label = word(unit.name.en.c_str(), unit.name.zh.c_str()),
                   .parts = {""},
                   .bars = {}};
    for (const ComparedMethod& method : comparison.methods) {
      if (!method.result) continue;
      const auto times = speedup(comparison, *method.result);
      const double seconds = method.result->seconds;
      chart.bars.push_back(
          {.label = method.method,
           .parts = {seconds / unit.seconds},
           .note = time_text(unit, seconds) + (times ? " (" + fixed(*times, 2) + "×)" : "")});
    }
    return svg_bar_chart(chart);
  });
}

Words loss_picture(const Comparison& comparison) {
  const Words counted = counted_name(comparison);
  const Words trained_on{counted.en + " trained on", "已训练的" + counted.zh + "数"};
  return both([&](auto word) {
    ChartPanel panel{.title = word("Training loss (running mean)", "训练损失（滑动平均）"),
                     .x_label = word(trained_on.en.c_str(), trained_on.zh.c_str()),
                     .y_label = word("loss", "损失"),
                     .series = {},
                     .y_from_zero = false};
    for (const ComparedMethod& method : comparison.methods) {
      if (method.result) panel.series.push_back(loss_curve(*method.result, method.method));
    }
    return svg_line_chart({panel}, panel_options());
  });
}

Words parts_picture(const Comparison& comparison) {
  return both([&](auto word) {
    BarChart chart{
        .title = word("Where a step's time goes", "一步的时间花在哪里"),
        .x_label = word("milliseconds a step (rank 0)", "每步毫秒数（rank 0）"),
        .parts = {word("data", "数据"), word("forward", "前向"), word("backward", "反向"),
                  word("waiting", "等待通信"), word("optimizer", "优化器")},
        .colours = {part_colour("data"), part_colour("forward"), part_colour("backward"),
                    part_colour("waiting"), part_colour("optimizer")},
        .bars = {}};
    for (const ComparedMethod& method : comparison.methods) {
      if (!method.result || !method.result->parts_s) continue;
      Bar bar{.label = method.method, .parts = {}, .note = {}};
      double sum = 0;
      for (const double seconds : *method.result->parts_s) {
        bar.parts.push_back(milliseconds_a_step(seconds, *method.result));
        sum += bar.parts.back();
      }
      bar.note = fixed(sum, sum < 100 ? 1 : 0);
      chart.bars.push_back(std::move(bar));
    }
    return svg_bar_chart(chart);
  });
}

Words scaling_picture(const Comparison& comparison) {
  const Words counted = counted_name(comparison);
  const Words cost{"seconds for 1000 " + counted.en, "每 1000 个" + counted.zh + "的秒数"};
  return both([&](auto word) {
    ChartPanel panel{.title = word("Time against ranks", "时间随 rank 数的变化"),
                     .x_label = word("ranks", "rank 数"),
                     .y_label = word(cost.en.c_str(), cost.zh.c_str()),
                     .series = {}};
    panel.x_integers = true;
    for (const ScalingSeries& series : comparison.scaling) {
      Series measured{.name = series.method, .x = {}, .y = {}};
      Series ideal{.name = word("ideal", "理想"), .x = {}, .y = {}, .dashed = true};
      for (const RunResult& run : series.runs) {
        const RunResult& first = series.runs.front();
        for (Series* one : {&measured, &ideal}) one->x.push_back(static_cast<double>(run.nproc));
        measured.y.push_back(1000 / run.samples_per_s);
        ideal.y.push_back(1000 / first.samples_per_s * static_cast<double>(first.nproc) /
                          static_cast<double>(run.nproc));
      }
      panel.series.push_back(std::move(measured));
      // Each method has an ideal of its own; with several methods the picture has enough lines
      // without them.
      if (comparison.scaling.size() == 1) panel.series.push_back(std::move(ideal));
    }
    return svg_line_chart({panel}, panel_options());
  });
}

std::string comparison_page(const Comparison& comparison) {
  const ComparisonWords words = comparison_words(comparison);
  HtmlPage page(words.title);
  page.paragraph(words.settings);
  page.paragraph(words.remarks);
  page.table(figures_sheet(comparison, has_tutorial(comparison)));
  for (const ComparedMethod& method : comparison.methods) {
    if (method.result) continue;
    page.paragraph(
        {method.method + " failed: " + method.failure, method.method + " 失败：" + method.failure});
  }
  std::vector<Words> pictures;
  const bool any = std::any_of(comparison.methods.begin(), comparison.methods.end(),
                               [](const ComparedMethod& m) { return m.result.has_value(); });
  if (any) {
    pictures = {time_picture(comparison), loss_picture(comparison), parts_picture(comparison)};
    if (!comparison.scaling.empty()) pictures.push_back(scaling_picture(comparison));
    page.pictures(pictures);
    page.heading({"The runs, and their first losses", "各次运行与最初几步的损失"});
    page.table(runs_sheet(comparison));
  }
  put_reports(page, comparison);
  put_terms(page, comparison);
  return page.str();
}

}  // namespace lockstep::inline v0::bench
