#include "lockstep/cli/plan/pictures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/plan/pipeline_check.h"
#include "lockstep/report/svg.h"
#include "lockstep/report/table.h"

namespace lockstep::cli {
namespace {

using enum PipelineWork;

// Without zeros that say nothing: "1.5", "2".
std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// A stage's own chunk, counted from the input: 'a', 'b', ...
std::string chunk_letter(const PipelineSchedule& schedule, const PipelineAction& action) {
  if (schedule.chunks == 1) return "";
  const int stage = schedule.stage_of[static_cast<size_t>(action.chunk)];
  const std::vector<int> own = schedule.chunks_of(stage);
  const auto place = std::find(own.begin(), own.end(), action.chunk) - own.begin();
  return std::string(1, static_cast<char>('a' + place % 26));
}

std::string label_of(const PipelineSchedule& schedule, const PipelineAction& action) {
  return to_string(action) + chunk_letter(schedule, action);
}

std::string headline(const PlannedPipeline& plan) {
  const PipelineSchedule& s = plan.schedule;
  std::string text = s.name + ": " + std::to_string(s.stages) + " stages, " +
                     std::to_string(s.micro_batches) + " micro-batches";
  if (s.chunks > 1) text += ", " + std::to_string(s.chunks) + " chunks a stage";
  return text;
}

std::string times_text(const PipelineTimes& times) {
  std::string text = "forward " + short_number(times.forward) + ", backward " +
                     short_number(times.backward_input) + " for inputs and " +
                     short_number(times.backward_weight) + " for weights";
  if (times.communication > 0) text += ", a message " + short_number(times.communication);
  return text;
}

double shortest_action(const PipelineTiming& timing) {
  double shortest = timing.makespan;
  for (const auto& actions : timing.actions)
    for (const TimedAction& timed : actions)
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
  return shortest;
}

// Columns for a unit of time: so many that each action's label fits, if the line then does, too. 0 where
// not even a letter does.
double columns_a_unit(const PlannedPipeline& plan, size_t columns) {
  double wanted = 0;
  for (const auto& actions : plan.timing.actions) {
    for (const TimedAction& timed : actions) {
      const auto label = static_cast<double>(label_of(plan.schedule, timed.action).size());
      if (timed.end > timed.start)
        wanted = std::max(wanted, (label + 1) / (timed.end - timed.start));
    }
  }
  const double scale = std::min(wanted, static_cast<double>(columns) / plan.timing.makespan);
  return scale * shortest_action(plan.timing) < 1 ? 0 : scale;
}

std::string chart_line(const PlannedPipeline& plan, const std::vector<TimedAction>& actions,
                       double scale) {
  const auto column = [&](double time) { return static_cast<size_t>(std::lround(time * scale)); };
  std::string line(column(plan.timing.makespan), '.');
  for (const TimedAction& timed : actions) {
    const size_t begin = column(timed.start), width = column(timed.end) - begin;
    std::string label = label_of(plan.schedule, timed.action);
    // Where the label does not fit, the letter alone is drawn as far as the action goes.
    if (label.size() >= width) label.assign(width, letter_of(timed.action.work));
    label.resize(width, ' ');
    line.replace(begin, width, label);
  }
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

bool used(const PipelineSchedule& schedule, PipelineWork work) {
  for (const auto& actions : schedule.actions)
    for (const PipelineAction& action : actions)
      if (action.work == work) return true;
  return false;
}

std::string chart_of(const PlannedPipeline& plan, size_t columns) {
  const size_t name = std::to_string(plan.schedule.stages - 1).size();
  const size_t frame = std::string("stage  | ").size() + name;
  const double scale = columns_a_unit(plan, columns > frame + 10 ? columns - frame : 10);
  if (scale == 0)
    return "Too long for " + std::to_string(columns) + " columns; --svg draws it.\n\n";
  std::string text;
  for (size_t stage = 0; stage < plan.timing.actions.size(); ++stage) {
    std::string number = std::to_string(stage);
    number.insert(0, name - number.size(), ' ');
    text += "stage " + number + " | " + chart_line(plan, plan.timing.actions[stage], scale) + "\n";
  }
  const bool whole = used(plan.schedule, kBackward);
  text += std::string("\nF forward, ") +
          (whole ? "B backward" : "I backward of inputs, W backward of weights") +
          " of a micro-batch";
  if (plan.schedule.chunks > 1) text += " through chunk a, b, ... of the stage";
  return text + "; dots: the stage waits\n\n";
}

std::string micro_batches_text(int activations, int chunks) {
  return short_number(static_cast<double>(activations) / chunks);
}

double waiting_of(const PlannedPipeline& plan, size_t stage) {
  double busy = 0;
  for (const TimedAction& timed : plan.timing.actions[stage]) busy += timed.end - timed.start;
  return (plan.timing.makespan - busy) / plan.timing.makespan;
}

std::string bubble_text(const PlannedPipeline& plan) {
  const auto theory = expected_bubble(plan.schedule, plan.times);
  const bool inner = plan.schedule.name == "zb-v";
  const std::string said = theory ? percent(*theory, 1) : "nothing";
  std::string text = "bubble " + percent(plan.timing.bubble, 1);
  if (!inner) text += " (theory: " + said + ")";
  text += ", inside of a stage's own work " + percent(plan.timing.inner_bubble, 1);
  if (inner) text += " (theory: " + said + ")";
  return text;
}

std::string stage_table(const PlannedPipeline& plan) {
  Table table({{"stage"}, {"chunks"}, {"waits"}, {"holds at most"}, {"theory"}});
  const std::vector<int> peaks = peak_activations(plan.schedule);
  for (int stage = 0; stage < plan.schedule.stages; ++stage) {
    std::string chunks;
    for (const int chunk : plan.schedule.chunks_of(stage))
      chunks += (chunks.empty() ? "" : ", ") + std::to_string(chunk);
    const auto theory = expected_peak(plan.schedule, stage);
    table.add({std::to_string(stage), chunks,
               percent(waiting_of(plan, static_cast<size_t>(stage)), 1),
               micro_batches_text(peaks[static_cast<size_t>(stage)], plan.schedule.chunks),
               theory ? micro_batches_text(*theory, plan.schedule.chunks) : "-"});
  }
  return table.str();
}

// ---- the picture ----

struct Paint {
  const char* name;
  PipelineWork work;
  size_t colour;  // of series_colour()
};
constexpr Paint kPaints[] = {{"forward", kForward, 5},
                             {"backward", kBackward, 1},
                             {"backward of inputs", kBackwardInput, 1},
                             {"backward of weights", kBackwardWeight, 2}};
constexpr double kRow = 30, kBox = 24, kTop = 64, kSide = 14;

std::string box(const Paint& paint, double x, double y, double width, double height, bool later) {
  // Chunks behind the first are fainter.
  return "<rect x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" width=\"" +
         svg_number(width) + "\" height=\"" + svg_number(height) + "\" fill=\"" +
         series_colour(paint.colour) + "\" fill-opacity=\"" + (later ? "0.4" : "0.85") +
         "\" stroke=\"white\" stroke-width=\"0.6\"/>\n";
}

double picture_scale(const PlannedPipeline& plan) {
  const double shortest = shortest_action(plan.timing);
  // A box has room for its number, and the picture is of a width that a page shows.
  return std::clamp(20 / shortest, 500 / plan.timing.makespan, 1600 / plan.timing.makespan);
}

std::string draw_stage(const PlannedPipeline& plan, int stage, double left, double scale) {
  std::string out;
  const double y = kTop + kRow * stage + (kRow - kBox) / 2;
  for (const TimedAction& timed : plan.timing.actions[static_cast<size_t>(stage)]) {
    const auto paint = std::find_if(std::begin(kPaints), std::end(kPaints), [&](const Paint& one) {
      return one.work == timed.action.work;
    });
    const double x = left + timed.start * scale, width = (timed.end - timed.start) * scale;
    const bool later = timed.action.chunk != plan.schedule.chunks_of(stage).front();
    out += box(*paint, x, y, width, kBox, later);
    const std::string number = std::to_string(timed.action.micro_batch);
    if (svg_text_width(number) <= width - 2)
      out += svg_text(x + width / 2, y + kBox / 2 + 4, Anchor::kMiddle, number,
                      " font-size=\"11\" fill=\"#102030\"");
  }
  return out;
}

}  // namespace

PlannedPipeline plan_pipeline(const std::string& schedule, const PipelineSize& size,
                              const PipelineTimes& times) {
  PlannedPipeline plan{make_schedule(schedule, size), times, {}};
  check_schedule(plan.schedule);
  plan.timing = time_of(plan.schedule, times);
  return plan;
}

std::string text_of(const PlannedPipeline& plan, size_t columns) {
  std::string text = headline(plan) + "; " + times_text(plan.times) + "\n\n";
  text += chart_of(plan, columns);
  text += "time " + short_number(plan.timing.makespan) + ", of which " +
          short_number(plan.timing.ideal) + " are work; " + bubble_text(plan) + "\n\n";
  return text + stage_table(plan) + "\nA stage holds activations, counted in micro-batches.\n";
}

std::string comparison_of(const std::vector<PlannedPipeline>& plans) {
  Table table({{"schedule", Align::kLeft},
               {"chunks"},
               {"time"},
               {"bubble"},
               {"inner bubble"},
               {"holds at most"}});
  for (const PlannedPipeline& plan : plans) {
    const std::vector<int> peaks = peak_activations(plan.schedule);
    table.add(
        {plan.schedule.name, std::to_string(plan.schedule.chunks),
         short_number(plan.timing.makespan), percent(plan.timing.bubble, 1),
         percent(plan.timing.inner_bubble, 1),
         micro_batches_text(*std::max_element(peaks.begin(), peaks.end()), plan.schedule.chunks)});
  }
  return table.str();
}

std::string svg_of(const PlannedPipeline& plan) {
  const double scale = picture_scale(plan);
  const double left = kSide + svg_text_width("stage " + std::to_string(plan.schedule.stages)) + 8;
  const double right = left + plan.timing.makespan * scale;
  const double bottom = kTop + kRow * plan.schedule.stages;
  std::vector<LegendEntry> entries;
  for (const Paint& paint : kPaints)
    if (used(plan.schedule, paint.work))
      entries.push_back({paint.name, box(paint, 4, 0, 18, 12, false)});
  if (plan.schedule.chunks > 1)
    entries.push_back({"fainter: the stage's later chunks", box(kPaints[0], 4, 0, 18, 12, true)});
  std::string out =
      svg_open(static_cast<int>(std::ceil(right + kSide)), static_cast<int>(bottom + 44)) +
      svg_text(kSide, 20, Anchor::kStart,
               headline(plan) + "; bubble " + percent(plan.timing.bubble, 1),
               " font-weight=\"bold\"") +
      svg_legend(entries, kSide, 34, right - kSide).svg;
  const int count = std::max(2, static_cast<int>((right - left) / 80));
  const std::vector<double> ticks = axis_ticks(0, plan.timing.makespan, count);
  for (const double tick : ticks) {
    if (tick > plan.timing.makespan) break;
    const double x = left + tick * scale;
    out += svg_grid_line(x, kTop, x, bottom);
    out += svg_text(x, bottom + 18, Anchor::kMiddle, tick_text(tick, ticks[1] - ticks[0]));
  }
  for (int stage = 0; stage < plan.schedule.stages; ++stage) {
    out += svg_text(left - 8, kTop + kRow * stage + kRow / 2 + 4, Anchor::kEnd,
                    "stage " + std::to_string(stage));
    out += draw_stage(plan, stage, left, scale);
  }
  out += svg_axis_line(left, kTop, left, bottom) + svg_axis_line(left, bottom, right, bottom);
  out += svg_text((left + right) / 2, bottom + 36, Anchor::kMiddle, "time");
  return out + "</svg>\n";
}

nlohmann::ordered_json json_of(const PlannedPipeline& plan) {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  const PipelineSchedule& s = plan.schedule;
  Json json{{"schedule", s.name},
            {"stages", s.stages},
            {"micro_batches", s.micro_batches},
            {"chunks_a_stage", s.chunks},
            {"stage_of_chunk", s.stage_of},
            {"times",
             {{"forward", plan.times.forward},
              {"backward_input", plan.times.backward_input},
              {"backward_weight", plan.times.backward_weight},
              {"communication", plan.times.communication}}},
            {"makespan", plan.timing.makespan},
            {"ideal", plan.timing.ideal},
            {"bubble", plan.timing.bubble},
            {"inner_bubble", plan.timing.inner_bubble},
            {"expected_bubble", or_null(expected_bubble(s, plan.times))},
            {"peak_activations", peak_activations(s)}};
  Json expected = Json::array(), stages = Json::array();
  for (int stage = 0; stage < s.stages; ++stage) {
    expected.push_back(or_null(expected_peak(s, stage)));
    Json actions = Json::array();
    for (const TimedAction& timed : plan.timing.actions[static_cast<size_t>(stage)]) {
      actions.push_back({{"work", std::string(1, letter_of(timed.action.work))},
                         {"chunk", timed.action.chunk},
                         {"micro_batch", timed.action.micro_batch},
                         {"start", timed.start},
                         {"end", timed.end}});
    }
    stages.push_back(std::move(actions));
  }
  json["expected_peak_activations"] = std::move(expected);
  json["actions"] = std::move(stages);
  return json;
}

}  // namespace lockstep::cli
