#include "lockstep/cli/plan/pictures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "lockstep/cli/usage.h"
#include "lockstep/plan/pipeline_check.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::cli {
namespace {

using enum PipelineWork;

// Writes a number without superfluous zeros: "1.5", "2".
std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// The letter of a stage's own chunk, counted from the input: 'a', 'b', ...
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

// The columns for a unit of time, so that each action's label fits, if the line then fits too. 0
// where not even a letter fits.
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
    // Where the label does not fit, the letter alone is drawn for the length of the action.
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
  std::string letters = std::string("F forward, ") +
                        (whole ? "B backward" : "I backward of inputs, W backward of weights") +
                        " of a micro-batch";
  if (plan.schedule.chunks > 1) letters += " through chunk a, b, ... of the stage";
  return text + "\n" + wrapped(letters + "; dots: the stage waits", 0, 0, columns) + "\n\n";
}

std::string micro_batches_text(int activations, int chunks) {
  return short_number(static_cast<double>(activations) / chunks);
}

double waiting_of(const PipelineTiming& timing, size_t stage) {
  double busy = 0;
  for (const TimedAction& timed : timing.actions[stage]) busy += timed.end - timed.start;
  return (timing.makespan - busy) / timing.makespan;
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
               percent(waiting_of(plan.timing, static_cast<size_t>(stage)), 1),
               micro_batches_text(peaks[static_cast<size_t>(stage)], plan.schedule.chunks),
               theory ? micro_batches_text(*theory, plan.schedule.chunks) : "-"});
  }
  return table.str();
}

}  // namespace

std::string text_of(const PlannedPipeline& plan, size_t columns) {
  std::string text =
      wrapped(headline(plan) + "; " + times_text(plan.times), 0, 0, columns) + "\n\n";
  text += chart_of(plan, columns);
  const std::string time = "time " + short_number(plan.timing.makespan) + ", of which " +
                           short_number(plan.timing.ideal) + " are work; " + bubble_text(plan);
  text += wrapped(time, 0, 0, columns) + "\n\n";
  return text + stage_table(plan) + "\nA stage holds activations, counted in micro-batches.\n";
}

std::string text_of(const MeasuredPipeline& measured) {
  const PlannedPipeline& plan = measured.planned;
  const PipelineSchedule& s = plan.schedule;
  const auto theory = expected_bubble(s, plan.times);
  const auto milliseconds = [](double seconds) { return fixed(seconds * 1e3, 3); };
  Table times({{"", Align::kLeft}, {"ms"}, {"bubble"}, {"inner bubble"}});
  times.add({"formula", "", theory && s.name != "zb-v" ? percent(*theory, 1) : "-",
             theory && s.name == "zb-v" ? percent(*theory, 1) : "-"});
  const auto add = [&](const char* name, const PipelineTiming& timing) {
    times.add({name, milliseconds(timing.makespan), percent(timing.bubble, 1),
               percent(timing.inner_bubble, 1)});
  };
  add("planned", plan.timing);
  add("measured", measured.timing);
  Table stages({{"stage"}, {"waits"}, {"planned"}, {"held at most"}, {"planned"}});
  const std::vector<int> peaks = peak_activations(s);
  for (size_t stage = 0; stage < peaks.size(); ++stage)
    stages.add({std::to_string(stage), percent(waiting_of(measured.timing, stage), 1),
                percent(waiting_of(plan.timing, stage), 1),
                micro_batches_text(measured.most_held[stage], s.chunks),
                micro_batches_text(peaks[stage], s.chunks)});
  return headline(plan) + "; in the mean forward " + milliseconds(plan.times.forward) +
         " ms, backward " + milliseconds(plan.times.backward_input) + " for inputs and " +
         milliseconds(plan.times.backward_weight) + " for weights\n\n" + times.str() + "\n" +
         stages.str() +
         "\nPlanned is with the mean times. A stage holds activations, counted in "
         "micro-batches.\n";
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

}  // namespace lockstep::inline v0::cli
