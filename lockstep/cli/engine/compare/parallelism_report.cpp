#include "lockstep/cli/engine/compare/parallelism_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/cli/engine/train/auto_mesh.h"
#include "lockstep/core/quantile.h"
#include "lockstep/report/bar_chart.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::engine {
namespace {

constexpr double kMiB = 1024 * 1024;

std::string in_mib(double bytes) {
  const double mib = bytes / kMiB;
  return fixed(mib, mib < 10 ? 2 : 1);
}

// Writes "3.52 / 3.50": the measured value and that of theory.
std::string beside(double measured, double theory) {
  return in_mib(measured) + " / " + in_mib(theory);
}

double as_bytes(int64_t bytes) {
  return static_cast<double>(bytes);
}

Sheet sheet_of_rows(const DividedComparison& comparison) {
  // A row that failed has no figures.
  const auto shown = [](Words title, auto text) {
    return Shown<DividedRow>{std::move(title), [text](const DividedRow& row) {
                               return row.runs.empty() ? std::string() : text(row);
                             }};
  };
  const auto bytes = [&shown](Words title, int64_t DividedRank::* measured,
                              double DividedTheory::* theory) {
    return shown(std::move(title), [=](const DividedRow& row) {
      return beside(as_bytes(row.most().*measured), row.theory.*theory);
    });
  };
  std::vector<Shown<DividedRow>> columns{
      {{"way", "方式"}, [](const DividedRow& row) { return row.way.name; }, Align::kLeft},
      {{"parameters", "参数"},
       [](const DividedRow& row) {
         if (row.runs.empty()) return std::string(row.failure.empty() ? "" : "failed");
         return beside(as_bytes(row.most().parameters), row.theory.parameters);
       }},
      bytes({"gradients", "梯度"}, &DividedRank::gradients, &DividedTheory::gradients),
      bytes({"state", "优化器状态"}, &DividedRank::state, &DividedTheory::state),
      shown({"activations", "激活值"},
            [&comparison](const DividedRow& row) {
              const double measured = as_bytes(row.most().activations),
                           theory = activations_in_theory(comparison, row);
              return theory > 0 ? beside(measured, theory) : in_mib(measured);
            }),
      shown({"in all", "合计"},
            [](const DividedRow& row) {
              const double off = row.planned_bytes / row.bytes() - 1;
              return beside(row.bytes(), row.planned_bytes) + " (" + (off > 0 ? "+" : "") +
                     percent(off, 1) + ")";
            }),
      shown({"PSS", "PSS"}, [](const DividedRow& row) { return in_mib(row.most().pss); }),
      shown({"sent a step", "每步发送"},
            [](const DividedRow& row) { return beside(row.sent(), row.theory.sent); }),
      shown({"bubble", "气泡"},
            [](const DividedRow& row) {
              if (!row.theory.bubble) return std::string();
              return percent(row.bubble(), 0) + " / " + percent(*row.theory.bubble, 0);
            }),
      shown({"ms a step", "毫秒/步"}, [](const DividedRow& row) {
        return fixed(row.step_ms(), 1) + " (" + percent(row.spread(), 0) + ")";
      })};
  const auto is_planned = [](const DividedRow& row) { return !row.planned_ms.empty(); };
  if (std::any_of(comparison.rows.begin(), comparison.rows.end(), is_planned))
    columns.push_back(shown({"planned", "预计"}, [](const DividedRow& row) {
      const auto planned = row.planned_step_ms();
      if (!planned) return std::string();
      const double off = *planned / row.step_ms() - 1;
      return fixed(*planned, 1) + " (" + (off > 0 ? "+" : "") + percent(off, 0) + ")";
    }));
  return sheet_of(columns, comparison.rows);
}

nlohmann::ordered_json row_json(const DividedComparison& comparison, const DividedRow& row) {
  nlohmann::ordered_json theory{{"parameters", row.theory.parameters},
                                {"gradients", row.theory.gradients},
                                {"state", row.theory.state},
                                {"activations", activations_in_theory(comparison, row)},
                                {"activations_share", row.theory.activations},
                                {"bytes", row.planned_bytes},
                                {"sent", row.theory.sent}};
  if (row.theory.bubble) theory["bubble"] = *row.theory.bubble;
  if (const auto planned = row.planned_step_ms()) {
    theory["step_ms"] = *planned;
    theory["planned_ms"] = row.planned_ms;
  }
  nlohmann::ordered_json json{{"way", row.way.name},
                              {"zero", row.way.how.zero},
                              {"micro_batches", row.way.how.micro_batches},
                              {"experts", row.way.experts},
                              {"theory", theory}};
  if (row.runs.empty()) {
    json["failure"] = row.failure;
    return json;
  }
  const DividedRank most = row.most();
  json["measured"] = {{"parameters", most.parameters},
                      {"gradients", most.gradients},
                      {"state", most.state},
                      {"buffers", most.buffers},
                      {"activations", most.activations},
                      {"bytes", row.bytes()},
                      {"pss", most.pss},
                      {"sent", row.sent()},
                      {"step_ms", row.step_ms()},
                      {"spread", row.spread()}};
  if (row.theory.bubble) json["measured"]["bubble"] = row.bubble();
  json["runs"] = nlohmann::ordered_json::array();
  for (const DividedRecord& run : row.runs) json["runs"].emplace_back(nlohmann::json(run));
  return json;
}

std::string drawn(BarChart chart, const DividedComparison& comparison,
                  void (*fill)(const DividedRow& row, Bar& bar)) {
  for (const DividedRow& row : comparison.rows) {
    if (row.runs.empty()) continue;
    Bar bar{.label = row.way.name, .parts = {}, .note = {}};
    fill(row, bar);
    chart.bars.push_back(std::move(bar));
  }
  return svg_bar_chart(chart);
}

void fill_memory(const DividedRow& row, Bar& bar) {
  const DividedRank most = row.most();
  double sum = 0;
  for (const int64_t bytes :
       {most.parameters, most.gradients, most.state, most.buffers, most.activations}) {
    bar.parts.push_back(as_bytes(bytes) / kMiB);
    sum += bar.parts.back();
  }
  bar.note = fixed(sum, 1);
}

void fill_time(const DividedRow& row, Bar& bar) {
  bar.parts = {row.step_ms()};
  bar.note = fixed(row.step_ms(), 1);
}

// The milliseconds of each run's slowest rank.
std::vector<double> slowest_ranks(const std::vector<DividedRecord>& runs) {
  std::vector<double> slowest;
  for (const DividedRecord& run : runs) {
    slowest.push_back(0);
    for (const DividedRank& rank : run.by_rank)
      slowest.back() = std::max(slowest.back(), rank.step_ms);
  }
  return slowest;
}

std::optional<Words> choice_words(const DividedComparison& comparison) {
  const auto choice = planned_choice(comparison);
  if (!choice) return std::nullopt;
  if (choice->behind <= 0)
    return Words{"The plan's choice, " + choice->way + ", is the fastest measured one.",
                 "计划选中的 " + choice->way + " 就是实测最快的方式。"};
  const std::string behind = percent(choice->behind, 1);
  return Words{"The plan's choice, " + choice->way + ", took " + behind +
                   " longer than the fastest measured one.",
               "计划选中的 " + choice->way + " 比实测最快的方式慢 " + behind + "。"};
}

Words settings_words(const DividedComparison& comparison) {
  const DividedSettings& of = comparison.settings;
  const LmConfig config = divided_model(of, false);
  const std::string layers = std::to_string(config.num_hidden_layers) + " x " +
                             std::to_string(config.hidden_size),
                    ranks = std::to_string(of.nproc), threads = std::to_string(of.threads),
                    batch = std::to_string(of.batch) + " x " + std::to_string(of.length),
                    steps = std::to_string(of.steps),
                    processors = std::to_string(comparison.processors);
  return {of.model + " (" + layers + "), " + ranks + " ranks x " + threads + ", batch " + batch +
              ", " + steps + " steps, " + comparison.processor + " (" + processors + "), " +
              comparison.date,
          of.model + "（" + layers + "），" + ranks + " 个 rank × " + threads + "，批次 " + batch +
              "，" + steps + " 步，" + comparison.processor + "（" + processors + "），" +
              comparison.date};
}

}  // namespace

double DividedRow::step_ms() const {
  return runs.empty() ? 0 : median(slowest_ranks(runs));
}

double DividedRow::spread() const {
  const std::vector<double> slowest = slowest_ranks(runs);
  if (runs.empty() || step_ms() <= 0) return 0;
  const auto [least, most] = std::minmax_element(slowest.begin(), slowest.end());
  return (*most - *least) / step_ms();
}

std::optional<double> DividedRow::planned_step_ms() const {
  if (planned_ms.empty()) return std::nullopt;
  return median(planned_ms);
}

double DividedRow::bubble() const {
  if (runs.empty() || !theory.bubble) return 0;
  double span = 0, busy = 0;
  for (const DividedRank& rank : runs.back().by_rank) {
    span = std::max(span, rank.span);
    busy += rank.busy / static_cast<double>(runs.back().by_rank.size());
  }
  return busy > 0 ? span / busy - 1 : 0;
}

DividedRank DividedRow::most() const {
  DividedRank most;
  if (runs.empty()) return most;
  for (const DividedRank& rank : runs.back().by_rank) {
    most.parameters = std::max(most.parameters, rank.parameters);
    most.gradients = std::max(most.gradients, rank.gradients);
    most.state = std::max(most.state, rank.state);
    most.buffers = std::max(most.buffers, rank.buffers);
    most.activations = std::max(most.activations, rank.activations);
    most.pss = std::max(most.pss, rank.pss);
  }
  return most;
}

double DividedRow::bytes() const {
  double most = 0;
  if (runs.empty()) return most;
  for (const DividedRank& rank : runs.back().by_rank)
    most = std::max(most, as_bytes(rank.bytes_in_all()));
  return most;
}

double DividedRow::sent() const {
  double most = 0;
  if (runs.empty()) return most;
  for (const DividedRank& rank : runs.back().by_rank) most = std::max(most, rank.sent_in_all());
  return most;
}

double activations_in_theory(const DividedComparison& comparison, const DividedRow& row) {
  const auto found =
      std::find_if(comparison.rows.begin(), comparison.rows.end(), [](const DividedRow& other) {
        return other.way.how.size_of("data") > 1 && other.way.how.zero == 0 &&
               other.theory.activations * other.way.how.size_of("data") > 0.999 &&
               !other.runs.empty();
      });
  if (found == comparison.rows.end()) return 0;
  return row.theory.activations / found->theory.activations * as_bytes(found->most().activations);
}

std::optional<PlannedChoice> planned_choice(const DividedComparison& comparison) {
  std::vector<const DividedRow*> rows;
  for (const DividedRow& row : comparison.rows)
    if (!row.way.experts && !row.runs.empty() && row.planned_step_ms()) rows.push_back(&row);
  if (rows.size() < 2) return std::nullopt;
  std::stable_sort(rows.begin(), rows.end(), [](const DividedRow* a, const DividedRow* b) {
    return *a->planned_step_ms() < *b->planned_step_ms();
  });
  std::vector<plan::Candidate> candidates(rows.size());
  double least = rows.front()->step_ms();
  for (size_t i = 0; i < rows.size(); ++i) {
    candidates[i].layout = planned_layout(rows[i]->way, comparison.settings);
    candidates[i].estimate.step = *rows[i]->planned_step_ms();
    least = std::min(least, rows[i]->step_ms());
  }
  const auto chosen = static_cast<size_t>(&simplest_of(candidates) - candidates.data());
  return PlannedChoice{.way = rows[chosen]->way.name,
                       .behind = rows[chosen]->step_ms() / least - 1};
}

std::string divided_table(const DividedComparison& comparison) {
  std::string text = text_of(sheet_of_rows(comparison));
  text +=
      "\nMiB of the rank that has most, measured / in theory; in all: measured / by a plan. In "
      "brackets: how far a plan is off, and how far the runs are apart.\n";
  if (const auto words = choice_words(comparison)) text += words->en + "\n";
  for (const LeftOutWay& left : comparison.left_out)
    text += "Left out: " + left.name + ": " + left.why + "\n";
  return text;
}

nlohmann::ordered_json to_json(const DividedComparison& comparison) {
  const DividedSettings& of = comparison.settings;
  nlohmann::ordered_json json{{"model", of.model},
                              {"parameters", parameter_count(divided_model(of, false))},
                              {"layers", divided_model(of, false).num_hidden_layers},
                              {"hidden", divided_model(of, false).hidden_size},
                              {"vocabulary", of.vocabulary},
                              {"nproc", of.nproc},
                              {"threads_per_rank", of.threads},
                              {"batch", of.batch},
                              {"length", of.length},
                              {"steps", of.steps},
                              {"processor", comparison.processor},
                              {"processors", comparison.processors},
                              {"date", comparison.date}};
  if (const auto choice = planned_choice(comparison))
    json["chosen"] = {{"way", choice->way}, {"behind", choice->behind}};
  json["ways"] = nlohmann::ordered_json::array();
  for (const DividedRow& row : comparison.rows) json["ways"].push_back(row_json(comparison, row));
  json["left_out"] = nlohmann::ordered_json::array();
  for (const LeftOutWay& left : comparison.left_out)
    json["left_out"].push_back({{"way", left.name}, {"why", left.why}});
  return json;
}

Words divided_memory_picture(const DividedComparison& comparison) {
  return {drawn({.title = "Memory of a rank",
                 .x_label = "MiB",
                 .parts = {"parameters", "gradients", "state", "buffers", "activations"},
                 .bars = {}},
                comparison, fill_memory),
          drawn({.title = "每个 rank 的内存",
                 .x_label = "MiB",
                 .parts = {"参数", "梯度", "优化器状态", "缓冲区", "激活值"},
                 .bars = {}},
                comparison, fill_memory)};
}

Words divided_time_picture(const DividedComparison& comparison) {
  return {drawn({.title = "Time of a step", .x_label = "ms", .parts = {"step"}, .bars = {}},
                comparison, fill_time),
          drawn({.title = "一步的时间", .x_label = "毫秒", .parts = {"一步"}, .bars = {}},
                comparison, fill_time)};
}

std::string divided_page(const DividedComparison& comparison) {
  HtmlPage page({"One language model, divided in every way", "以各种方式划分同一个语言模型"});
  page.paragraph(settings_words(comparison));
  page.paragraph(
      {"Every way trains on the same batch. Memory and bytes are of the rank that has most, in "
       "MiB, "
       "measured / in theory, where everything divides evenly. Activations in theory follow from "
       "those of data parallelism. The expert way trains a model with experts, which is larger.",
       "所有方式都用同一个批次训练。内存和字节数取最多的那个 rank，单位 MiB，写作“实测 / "
       "理论”；理论假设一切都均匀划分。激活值的理论值由数据并行的实测值推出。"
       "expert 一行训练的是带专家的模型，参数更多。"});
  page.table(sheet_of_rows(comparison));
  if (auto words = choice_words(comparison)) page.paragraph(std::move(*words));
  page.pictures({divided_memory_picture(comparison), divided_time_picture(comparison)});
  std::vector<std::pair<Words, Words>> left;
  for (const LeftOutWay& one : comparison.left_out)
    left.emplace_back(same_words(one.name), same_words(one.why));
  for (const DividedRow& row : comparison.rows)
    if (!row.failure.empty()) left.emplace_back(same_words(row.way.name), same_words(row.failure));
  if (!left.empty()) {
    page.heading({"Left out", "未运行"});
    page.terms(left);
  }
  return page.str();
}

}  // namespace lockstep::inline v0::engine
