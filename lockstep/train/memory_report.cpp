#include "lockstep/train/memory_report.h"

#include <ATen/ops/zeros.h>

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
constexpr std::array<Part, 7> kParts{{{"parameters", "参数", &StepMemory::parameters},
                                      {"gradients", "梯度", &StepMemory::gradients},
                                      {"optimizer", "优化器状态", &StepMemory::state},
                                      {"buffers", "缓冲区", &StepMemory::buffers},
                                      {"average", "移动平均", &StepMemory::average},
                                      {"activations", "激活值", &StepMemory::activations},
                                      {"temporaries", "临时张量", &StepMemory::temporaries}}};
constexpr std::array<int64_t StepMemory::*, 8> kFields{
    &StepMemory::parameters,  &StepMemory::gradients, &StepMemory::state,
    &StepMemory::buffers,     &StepMemory::average,   &StepMemory::activations,
    &StepMemory::temporaries, &StepMemory::overlap};

// Every rank's. Collective.
std::vector<StepMemory> of_all(Communicator& comm, const StepMemory& own) {
  constexpr auto kCount = static_cast<int64_t>(kFields.size());
  const at::Tensor mine = at::zeros({1, kCount}, at::kLong);
  for (size_t i = 0; i < kFields.size(); ++i) mine.mutable_data_ptr<int64_t>()[i] = own.*kFields[i];
  const at::Tensor all = comm.all_gather(mine.to(comm.device())).to(at::kCPU);
  std::vector<StepMemory> ranks(static_cast<size_t>(comm.size()));
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t i = 0; i < kFields.size(); ++i)
      ranks[r].*kFields[i] = all.const_data_ptr<int64_t>()[r * kFields.size() + i];
  }
  return ranks;
}

// "0.4 % less than predicted".
std::string against(const RankMemory& memory) {
  const double percent = 100 * memory.difference();
  if (std::abs(percent) < 0.05) return "as predicted";
  return fixed(std::abs(percent), 1) + " % " + (percent > 0 ? "less" : "more") + " than predicted";
}

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
  json["total"] = memory.total();
  return json;
}

nlohmann::ordered_json to_json(const std::vector<RankMemory>& ranks) {
  if (ranks.empty()) return nlohmann::ordered_json::object();
  nlohmann::ordered_json json{
      {"predicted", to_json(ranks.front().predicted)},
      {"allocated", to_json(ranks.front().allocated)},
      {"difference_percent", std::round(1e4 * ranks.front().difference()) / 100},
      {"ranks", nlohmann::ordered_json::array()}};
  for (const RankMemory& rank : ranks)
    json["ranks"].push_back(
        {{"predicted", rank.predicted.total()}, {"allocated", rank.allocated.total()}});
  return json;
}

double RankMemory::difference() const {
  const auto of = static_cast<double>(allocated.total());
  return of > 0 ? static_cast<double>(predicted.total()) / of - 1 : 0;
}

std::string memory_svg(const StepMemory& predicted, const StepMemory& allocated, bool chinese) {
  const auto word = [chinese](const char* en, const char* zh) { return chinese ? zh : en; };
  const ByteUnit unit =
      byte_unit(static_cast<double>(std::max(predicted.total(), allocated.total())));
  BarChart chart;
  chart.title = word("Memory of a rank", "一个 rank 的内存");
  chart.x_label = unit.name;
  for (const Part& part : kParts) {
    chart.parts.emplace_back(word(part.name, part.chinese));
    chart.colours.push_back(part_colour(part.name));
  }
  // A prediction may not know the activations, of which there are always some.
  const bool partly = predicted.activations == 0 && allocated.activations > 0;
  const char* before =
      partly ? word("predicted, no activations", "预测（不含激活值）") : word("predicted", "预测");
  for (const auto& [label, memory] :
       {std::pair(before, &predicted), {word("allocated", "实际分配"), &allocated}}) {
    Bar bar;
    bar.label = label;
    bar.note = bytes_text(memory->total());
    StepMemory shown = *memory;
    // Those that are there when most is taken; a bar is as long as its total.
    const int64_t later = std::min(shown.overlap, shown.gradients);
    shown.gradients -= later;
    shown.temporaries = std::max<int64_t>(0, shown.temporaries - (shown.overlap - later));
    for (const Part& part : kParts)
      bar.parts.push_back(static_cast<double>(shown.*part.bytes) / unit.bytes);
    chart.bars.push_back(std::move(bar));
  }
  return svg_bar_chart(chart);
}

MemoryCallback::MemoryCallback(Strategy& strategy, torch::optim::Optimizer& optimizer,
                               std::function<void(const std::string&)> say,
                               std::filesystem::path picture, const std::optional<StepBytes>& step,
                               int64_t average)
    : strategy_(strategy),
      optimizer_(optimizer),
      say_(std::move(say)),
      picture_(std::move(picture)),
      average_(average),
      plans_all_(step.has_value()) {
  StepMemory own = strategy.state().planned_memory(optimizer);
  own.average = average;
  if (step) own.set(*step);
  for (const StepMemory& memory : of_all(strategy.comm(), own))
    ranks_.push_back({.predicted = memory, .allocated = {}});
  // The first of those that take about the most.
  const auto total = [&](size_t r) { return static_cast<double>(ranks_[r].predicted.total()); };
  constexpr double kAbout = 0.99;
  for (size_t r = 1; r < ranks_.size(); ++r) {
    if (kAbout * total(r) > total(most_)) most_ = r;
  }
  if (say_ && plans_all_)
    say_(place() + ", predicted: " + to_text(ranks_[most_].predicted) + "; " +
         bytes_text(ranks_[most_].predicted.total()) + " in all");
}

std::string MemoryCallback::place() const {
  return most_ == 0 ? "Memory of a rank"
                    : "Memory of rank " + std::to_string(most_) + ", which takes most";
}

void MemoryCallback::on_step(const TrainerState&, const StepResult& result) {
  if (std::exchange(counted_, true)) return;
  StepMemory own = strategy_.state().memory(optimizer_);
  own.average = average_;
  own.set(result.memory);
  const std::vector<StepMemory> all = of_all(strategy_.comm(), own);
  for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].allocated = all[r];
  if (strategy_.comm().rank() != 0) return;
  const RankMemory& most = ranks_[most_];
  if (say_)
    say_(place() + ", allocated: " + to_text(most.allocated) + "; " +
         bytes_text(most.allocated.total()) + " in all" + (plans_all_ ? ", " + against(most) : ""));
  write_file_aside(picture_, memory_svg(most.predicted, most.allocated));
  write_file_aside(in_chinese(picture_),
                   memory_svg(most.predicted, most.allocated, /*chinese=*/true));
}

}  // namespace lockstep::inline v0
