#include "lockstep/train/memory_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/aside_file.h"
#include "lockstep/report/bar_chart.h"
#include "lockstep/report/run_report.h"
#include "lockstep/report/svg.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0 {
namespace {

struct Part {
  const char* name;
  const char* chinese;
  int64_t StepMemory::* bytes;
};
constexpr std::array<Part, 6> kParts{{{"parameters", "参数", &StepMemory::parameters},
                                      {"gradients", "梯度", &StepMemory::gradients},
                                      {"optimizer", "优化器状态", &StepMemory::state},
                                      {"buffers", "缓冲区", &StepMemory::buffers},
                                      {"average", "移动平均", &StepMemory::average},
                                      {"activations", "激活值", &StepMemory::activations}}};

}  // namespace

std::string bytes_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  // What would be written as 1024 is one of the next unit.
  const ByteUnit unit = byte_unit(value * 1024 / 1023.5);
  const double count = value / unit.bytes;
  return fixed(count, unit.bytes > 1 && count < 9.95 ? 1 : 0) + " " + unit.name;
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

std::string memory_svg(const StepMemory& planned, const StepMemory& counted, bool chinese) {
  const auto word = [chinese](const char* en, const char* zh) { return chinese ? zh : en; };
  const ByteUnit unit = byte_unit(static_cast<double>(std::max(planned.total(), counted.total())));
  BarChart chart;
  chart.title = word("Memory of a rank", "一个 rank 的内存");
  chart.x_label = unit.name;
  for (const Part& part : kParts) {
    chart.parts.emplace_back(word(part.name, part.chinese));
    chart.colours.push_back(part_colour(part.name));
  }
  // A plan may not know the activations, of which there are always some.
  const bool partly = planned.activations == 0 && counted.activations > 0;
  const char* plan =
      partly ? word("planned, no activations", "计划（不含激活值）") : word("planned", "计划");
  for (const auto& [label, memory] :
       {std::pair(plan, &planned), {word("first step", "第一步"), &counted}}) {
    Bar bar;
    bar.label = label;
    bar.note = bytes_text(memory->total());
    for (const Part& part : kParts)
      bar.parts.push_back(static_cast<double>(memory->*part.bytes) / unit.bytes);
    chart.bars.push_back(std::move(bar));
  }
  return svg_bar_chart(chart);
}

MemoryCallback::MemoryCallback(Strategy& strategy, torch::optim::Optimizer& optimizer,
                               std::function<void(const std::string&)> say,
                               std::filesystem::path picture, std::optional<int64_t> activations,
                               int64_t average)
    : strategy_(strategy),
      optimizer_(optimizer),
      say_(std::move(say)),
      picture_(std::move(picture)),
      planned_(strategy.state().planned_memory(optimizer)) {
  planned_.average = average;
  planned_.activations = activations.value_or(0);
  plans_all_ = activations.has_value();
  if (say_ && plans_all_)
    say_("Memory of a rank, planned: " + to_text(planned_) + "; " + bytes_text(planned_.total()) +
         " in all");
}

void MemoryCallback::on_step(const TrainerState&, const StepResult& result) {
  if (counted_.total() > 0) return;
  counted_ = strategy_.state().memory(optimizer_);
  counted_.average = planned_.average;
  if (counted_.activations == 0) counted_.activations = result.activations;
  constexpr double kWorthSaying = 0.1;
  const auto planned = static_cast<double>(planned_.total()),
             counted = static_cast<double>(counted_.total());
  if (say_ && (!plans_all_ || std::abs(counted - planned) > kWorthSaying * planned))
    say_("Memory of a rank, first step: " + to_text(counted_) + "; " +
         bytes_text(counted_.total()) + " in all");
  write_file_aside(picture_, memory_svg(planned_, counted_));
  write_file_aside(in_chinese(picture_), memory_svg(planned_, counted_, /*chinese=*/true));
}

}  // namespace lockstep::inline v0
