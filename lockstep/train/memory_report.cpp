#include "lockstep/train/memory_report.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/aside_file.h"
#include "lockstep/report/bar_chart.h"
#include "lockstep/report/table.h"

namespace lockstep {
namespace {

struct Part {
  const char* name;
  int64_t StepMemory::* bytes;
};
constexpr std::array<Part, 5> kParts{{{"parameters", &StepMemory::parameters},
                                      {"gradients", &StepMemory::gradients},
                                      {"optimizer", &StepMemory::state},
                                      {"buffers", &StepMemory::buffers},
                                      {"activations", &StepMemory::activations}}};

}  // namespace

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return fixed(value, unit > 0 && value < 9.95 ? 1 : 0) + " " + kUnits[unit];
}

std::string to_text(const StepMemory& memory) {
  std::string text;
  for (const Part& part : kParts) {
    const int64_t bytes = memory.*part.bytes;
    if (bytes > 0)
      text += (text.empty() ? "" : ", ") + std::string(part.name) + " " + bytes_text(bytes);
  }
  return text;
}

nlohmann::ordered_json to_json(const StepMemory& memory) {
  nlohmann::ordered_json json;
  for (const Part& part : kParts) json[part.name] = memory.*part.bytes;
  return json;
}

std::string memory_svg(const StepMemory& planned, const StepMemory& counted) {
  BarChart chart;
  chart.title = "Memory of a rank";
  chart.x_label = "MB";
  for (const Part& part : kParts) chart.parts.emplace_back(part.name);
  for (const auto& [label, memory] : {std::pair("planned", &planned), {"first step", &counted}}) {
    Bar bar;
    bar.label = label;
    bar.note = bytes_text(memory->total());
    for (const Part& part : kParts)
      bar.parts.push_back(static_cast<double>(memory->*part.bytes) / 1e6);
    chart.bars.push_back(std::move(bar));
  }
  return svg_bar_chart(chart);
}

MemoryCallback::MemoryCallback(Strategy& strategy, torch::optim::Optimizer& optimizer,
                               std::function<void(const std::string&)> say,
                               std::filesystem::path picture, std::optional<int64_t> activations)
    : strategy_(strategy),
      optimizer_(optimizer),
      say_(std::move(say)),
      picture_(std::move(picture)),
      planned_(strategy.planned_memory(optimizer)) {
  planned_.activations = activations.value_or(0);
  plans_all_ = activations.has_value();
  if (say_ && plans_all_)
    say_("Memory of a rank, planned: " + to_text(planned_) + "; " + bytes_text(planned_.total()) +
         " in all");
}

void MemoryCallback::on_step(const TrainerState&, const StepResult& result) {
  if (counted_.total() > 0) return;
  counted_ = strategy_.memory(optimizer_);
  if (counted_.activations == 0) counted_.activations = result.activations;
  constexpr double kWorthSaying = 0.1;
  const auto planned = static_cast<double>(planned_.total()),
             counted = static_cast<double>(counted_.total());
  if (say_ && (!plans_all_ || std::abs(counted - planned) > kWorthSaying * planned))
    say_("Memory of a rank, first step: " + to_text(counted_) + "; " +
         bytes_text(counted_.total()) + " in all");
  write_file_aside(picture_, memory_svg(planned_, counted_));
}

}  // namespace lockstep
