#include "lockstep/report/pipeline_picture.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/core/errors.h"
#include "lockstep/plan/pipeline_check.h"
#include "lockstep/report/svg.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0 {
namespace {

using enum PipelineWork;

struct Paint {
  const char* name;
  PipelineWork work;
  size_t colour;  // index of series_colour()
};
constexpr Paint kPaints[] = {{"forward", kForward, 5},
                             {"backward", kBackward, 1},
                             {"backward of inputs", kBackwardInput, 1},
                             {"backward of weights", kBackwardWeight, 2}};
constexpr double kStageHeight = 30, kBoxHeight = 24, kPanelTop = 64, kPanelSide = 14;
// A panel has its axis' numbers and name below it, and its title above it.
constexpr double kPanelAxis = 44, kPanelTitle = 28;

std::string headline(const PipelineSchedule& s) {
  std::string text = s.name + ": " + std::to_string(s.stages) + " stages, " +
                     std::to_string(s.micro_batches) + " micro-batches";
  if (s.chunks > 1) text += ", " + std::to_string(s.chunks) + " chunks a stage";
  return text;
}

std::string box(const Paint& paint, double x, double y, double width, double height, bool later) {
  // Chunks after the first one are fainter.
  return "<rect x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" width=\"" +
         svg_number(width) + "\" height=\"" + svg_number(height) + "\" fill=\"" +
         series_colour(paint.colour) + "\" fill-opacity=\"" + (later ? "0.4" : "0.85") +
         "\" stroke=\"white\" stroke-width=\"0.6\"/>\n";
}

bool used(const PipelineSchedule& schedule, PipelineWork work) {
  for (const auto& actions : schedule.actions)
    for (const PipelineAction& action : actions)
      if (action.work == work) return true;
  return false;
}

double shortest_action(const PipelineTiming& timing) {
  double shortest = timing.makespan;
  for (const auto& actions : timing.actions)
    for (const TimedAction& timed : actions)
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
  return shortest;
}

// The position of a panel's stages, and the scale of time.
struct Frame {
  double left = 0, top = 0, scale = 1;
  double makespan = 0;    // the length that the axis covers
  double shown = 1;       // the label's value of one unit of time
  std::string_view axis;  // "time, ms"
  double right() const { return left + makespan * scale; }
};

std::string draw_stage(const PipelineSchedule& schedule, const PipelineTiming& timing, int stage,
                       const Frame& frame) {
  std::string out;
  const double y = frame.top + kStageHeight * stage + (kStageHeight - kBoxHeight) / 2;
  for (const TimedAction& timed : timing.actions[static_cast<size_t>(stage)]) {
    const auto paint = std::find_if(std::begin(kPaints), std::end(kPaints), [&](const Paint& one) {
      return one.work == timed.action.work;
    });
    const double x = frame.left + timed.start * frame.scale;
    const double width = (timed.end - timed.start) * frame.scale;
    const bool later = timed.action.chunk != schedule.chunks_of(stage).front();
    out += box(*paint, x, y, width, kBoxHeight, later);
    const std::string number = std::to_string(timed.action.micro_batch);
    if (svg_text_width(number) <= width - 2)
      out += svg_text(x + width / 2, y + kBoxHeight / 2 + 4, Anchor::kMiddle, number,
                      " font-size=\"11\" fill=\"#102030\"");
  }
  return out;
}

std::string draw_panel(const PipelineSchedule& schedule, const PipelineTiming& timing,
                       const Frame& frame) {
  const double bottom = frame.top + kStageHeight * schedule.stages;
  const double whole = frame.makespan * frame.shown;
  const int count = std::max(2, static_cast<int>((frame.right() - frame.left) / 80));
  const std::vector<double> ticks = axis_ticks(0, whole, count);
  std::string out;
  for (const double tick : ticks) {
    if (tick > whole) break;
    const double x = frame.left + tick / frame.shown * frame.scale;
    out += svg_grid_line(x, frame.top, x, bottom);
    out += svg_text(x, bottom + 18, Anchor::kMiddle, tick_text(tick, ticks[1] - ticks[0]));
  }
  for (int stage = 0; stage < schedule.stages; ++stage) {
    out += svg_text(frame.left - 8, frame.top + kStageHeight * stage + kStageHeight / 2 + 4,
                    Anchor::kEnd, "stage " + std::to_string(stage));
    out += draw_stage(schedule, timing, stage, frame);
  }
  out += svg_axis_line(frame.left, frame.top, frame.left, bottom) +
         svg_axis_line(frame.left, bottom, frame.right(), bottom);
  return out + svg_text((frame.left + frame.right()) / 2, bottom + 36, Anchor::kMiddle, frame.axis);
}

std::string draw_legend(const PipelineSchedule& schedule, double width) {
  std::vector<LegendEntry> entries;
  for (const Paint& paint : kPaints)
    if (used(schedule, paint.work))
      entries.push_back({paint.name, box(paint, 4, 0, 18, 12, false)});
  if (schedule.chunks > 1)
    entries.push_back({"fainter: the stage's later chunks", box(kPaints[0], 4, 0, 18, 12, true)});
  return svg_legend(entries, kPanelSide, 34, width).svg;
}

Frame frame_of(const PipelineSchedule& schedule, double makespan, double shortest) {
  Frame frame;
  frame.left = kPanelSide + svg_text_width("stage " + std::to_string(schedule.stages)) + 8;
  frame.top = kPanelTop;
  frame.makespan = makespan;
  // A box has room for its number, and the picture has a width that a page can show.
  frame.scale = std::clamp(20 / shortest, 500 / makespan, 1600 / makespan);
  frame.axis = "time";
  return frame;
}

// "12.5 ms", "3.1 s".
std::string seconds_text(double seconds) {
  return seconds < 1 ? fixed(seconds * 1e3, seconds < 0.01 ? 3 : 1) + " ms"
                     : fixed(seconds, 3) + " s";
}

std::string held_text(const std::vector<int>& held, int chunks) {
  std::string text;
  for (const int one : held) {
    const bool whole = one % chunks == 0;
    text += (text.empty() ? "" : ", ") + fixed(static_cast<double>(one) / chunks, whole ? 0 : 1);
  }
  return text;
}

// The papers of zb-v state the bubble inside a stage's own work; the other papers that of the whole
// step.
bool is_inner(const PipelineSchedule& schedule) {
  return schedule.name == "zb-v";
}
std::string bubble_of(const PipelineSchedule& schedule, const PipelineTiming& timing) {
  return is_inner(schedule) ? "inner bubble " + percent(timing.inner_bubble, 1)
                            : "bubble " + percent(timing.bubble, 1);
}

nlohmann::ordered_json actions_json(const PipelineTiming& timing) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const auto& of_stage : timing.actions) {
    nlohmann::ordered_json actions = nlohmann::ordered_json::array();
    for (const TimedAction& timed : of_stage) {
      actions.push_back({{"work", std::string(1, letter_of(timed.action.work))},
                         {"chunk", timed.action.chunk},
                         {"micro_batch", timed.action.micro_batch},
                         {"start", timed.start},
                         {"end", timed.end}});
    }
    stages.push_back(std::move(actions));
  }
  return stages;
}

TimedAction action_of(const nlohmann::json& json) {
  const auto letter = json.at("work").get<std::string>();
  for (const PipelineWork work : {kForward, kBackward, kBackwardInput, kBackwardWeight}) {
    if (letter != std::string(1, letter_of(work))) continue;
    return {{work, json.at("chunk").get<int>(), json.at("micro_batch").get<int>()},
            json.at("start").get<double>(),
            json.at("end").get<double>()};
  }
  throw InvalidArgument("no work '" + letter + "'");
}

std::vector<std::vector<TimedAction>> actions_of(const nlohmann::json& stages) {
  std::vector<std::vector<TimedAction>> actions;
  for (const auto& of_stage : stages) {
    actions.emplace_back();
    for (const auto& one : of_stage) actions.back().push_back(action_of(one));
  }
  return actions;
}

MeasuredPipeline measured_of(const nlohmann::json& json) {
  PipelineSchedule schedule;
  schedule.name = json.at("schedule").get<std::string>();
  schedule.stages = json.at("stages").get<int>();
  schedule.micro_batches = json.at("micro_batches").get<int>();
  schedule.chunks = json.at("chunks_a_stage").get<int>();
  schedule.stage_of = json.at("stage_of_chunk").get<std::vector<int>>();
  for (const auto& of_stage : actions_of(json.at("actions"))) {
    schedule.actions.emplace_back();
    for (const TimedAction& timed : of_stage) schedule.actions.back().push_back(timed.action);
  }
  const nlohmann::json& measured = json.at("measured");
  check_schedule(schedule);
  return measured_pipeline(schedule, actions_of(measured.at("actions")),
                           measured.at("peak_activations").get<std::vector<int>>());
}

}  // namespace

std::string pipeline_svg(const PlannedPipeline& plan) {
  const PipelineSchedule& schedule = plan.schedule;
  const Frame frame = frame_of(schedule, plan.timing.makespan, shortest_action(plan.timing));
  const double bottom = frame.top + kStageHeight * schedule.stages;
  return svg_open(static_cast<int>(std::ceil(frame.right() + kPanelSide)),
                  static_cast<int>(bottom + kPanelAxis)) +
         svg_text(kPanelSide, 20, Anchor::kStart,
                  headline(schedule) + "; bubble " + percent(plan.timing.bubble, 1),
                  " font-weight=\"bold\"") +
         draw_legend(schedule, frame.right() - kPanelSide) +
         draw_panel(schedule, plan.timing, frame) + "</svg>\n";
}

std::string pipeline_svg(const MeasuredPipeline& measured) {
  const PlannedPipeline& plan = measured.planned;
  const PipelineSchedule& schedule = plan.schedule;
  Frame frame = frame_of(schedule, std::max(plan.timing.makespan, measured.timing.makespan),
                         shortest_action(plan.timing));
  const bool milliseconds = frame.makespan < 1;
  frame.shown = milliseconds ? 1e3 : 1;
  frame.axis = milliseconds ? "time, ms" : "time, s";
  frame.top = kPanelTop + kPanelTitle;
  Frame below = frame;
  below.top += kStageHeight * schedule.stages + kPanelAxis + kPanelTitle;
  const auto theory = expected_bubble(schedule, plan.times);
  const std::string planned_line =
      "planned with the mean times: " + seconds_text(plan.timing.makespan) + ", " +
      bubble_of(schedule, plan.timing) +
      (theory ? " (formula: " + percent(*theory, 1) + ")" : std::string()) +
      "; stages hold at most " + held_text(peak_activations(schedule), schedule.chunks);
  const std::string measured_line = "measured: " + seconds_text(measured.timing.makespan) + ", " +
                                    bubble_of(schedule, measured.timing) +
                                    "; stages held at most " +
                                    held_text(measured.most_held, schedule.chunks);
  const double right = std::max(frame.right(), kPanelSide + svg_text_width(planned_line));
  return svg_open(static_cast<int>(std::ceil(right + kPanelSide)),
                  static_cast<int>(below.top + kStageHeight * schedule.stages + kPanelAxis)) +
         svg_text(kPanelSide, 20, Anchor::kStart, headline(schedule), " font-weight=\"bold\"") +
         draw_legend(schedule, right - kPanelSide) +
         svg_text(kPanelSide, frame.top - 10, Anchor::kStart, planned_line) +
         draw_panel(schedule, plan.timing, frame) +
         svg_text(kPanelSide, below.top - 10, Anchor::kStart, measured_line) +
         draw_panel(schedule, measured.timing, below) + "</svg>\n";
}

nlohmann::ordered_json pipeline_json(const PlannedPipeline& plan) {
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
  Json expected = Json::array();
  for (int stage = 0; stage < s.stages; ++stage)
    expected.push_back(or_null(expected_peak(s, stage)));
  json["expected_peak_activations"] = std::move(expected);
  json["actions"] = actions_json(plan.timing);
  return json;
}

nlohmann::ordered_json pipeline_json(const MeasuredPipeline& measured) {
  nlohmann::ordered_json json = pipeline_json(measured.planned);
  json["measured"] = {
      {"makespan", measured.timing.makespan},   {"ideal", measured.timing.ideal},
      {"bubble", measured.timing.bubble},       {"inner_bubble", measured.timing.inner_bubble},
      {"peak_activations", measured.most_held}, {"actions", actions_json(measured.timing)}};
  return json;
}

MeasuredPipeline parse_measured_pipeline(const std::string& text, const std::string& where) {
  try {
    return measured_of(nlohmann::json::parse(text));
  } catch (const nlohmann::json::parse_error& error) {
    throw DataError(where + " is no JSON (at byte " + std::to_string(error.byte) +
                    "); give a file that a pipeline has written of a step");
  } catch (const nlohmann::json::exception& error) {
    throw DataError(where + " is no measured pipeline: " + error.what());
  } catch (const InvalidArgument& error) {
    throw DataError(where + " is no measured pipeline: " + error.what());
  }
}

}  // namespace lockstep::inline v0
