// The whole model, put together; and who has what, in words.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "lockstep/core/check.h"
#include "lockstep/model/lm_experts.h"
#include "lockstep/products/internal/state.h"

namespace lockstep {
namespace {

constexpr int kTag = 0x1a9;

}  // namespace

std::map<std::string, int> ParallelLm::State::stages_of_parameters() const {
  const auto& units = lm->unit_names();
  std::vector<int> stage_of_unit;
  for (size_t chunk = 0; chunk < how.cut.size(); ++chunk)
    stage_of_unit.insert(stage_of_unit.end(), static_cast<size_t>(how.cut[chunk]),
                         schedule.stage_of[chunk]);
  std::map<std::string, int> stages;
  for (const auto& [name, shape] : lm_parameter_shapes(config)) {
    const auto has = [&, whole = &name](const std::string& unit) {
      return whole->starts_with(unit + ".");
    };
    const auto unit = std::find_if(units.begin(), units.end(), has);
    LOCKSTEP_CHECK(unit != units.end(), "every parameter is a unit's");
    stages[name] = stage_of_unit[static_cast<size_t>(unit - units.begin())];
  }
  return stages;
}

std::shared_ptr<void> ParallelLm::whole_parameters() {
  auto held = std::make_shared<std::vector<std::shared_ptr<void>>>();
  for (const LmParameterClass& one : state_->classes)
    if (auto whole = one.optimizer ? one.optimizer->whole_parameters() : nullptr)
      held->push_back(std::move(whole));
  return held->empty() ? nullptr : held;
}

NamedTensors ParallelLm::gather() {
  State& state = *state_;
  const at::NoGradGuard no_grad;
  // Of each stage the ranks in place 0 along data and context have its parts, and send them to rank 0: those of
  // experts from each place along expert, others from place 0.
  const bool takes_part = state.mesh.place("data") == 0 && state.mesh.place("context") == 0;
  const int experts_place = state.mesh.place("expert");
  const auto is_sent_here = [&](const std::string& name) {
    return takes_part && (experts_place == 0 || is_expert_parameter(name));
  };
  NamedTensors mine;
  const auto kept = whole_parameters();
  for (const LmParameterPart& part : state.own)
    if (!part.copy && is_sent_here(part.name)) mine.emplace_back(part.name, part.tensor);
  NamedTensors whole;
  if (takes_part) whole = state.parts.gather(mine);
  const bool is_root = state.comm.rank() == 0;
  const std::map<std::string, int> stage_of = state.stages_of_parameters();
  const MeshLayout& layout = state.mesh.layout();
  const int parts = state.mesh["expert"].size();
  const auto rank_of = [&](const std::string& name) {
    std::vector<int> places(layout.axes().size(), 0);
    places[layout.index_of("pipe")] = stage_of.at(name);
    if (const int64_t expert = expert_of(name); expert >= 0)
      places[layout.index_of("expert")] =
          static_cast<int>(expert * parts / state.config.num_local_experts);
    return layout.rank_at(places);
  };
  if (!is_root) {
    if (takes_part && state.mesh.place("tensor") == 0) {
      for (const auto& [name, tensor] : whole)
        state.comm.isend(tensor.contiguous(), 0, kTag).wait();
    }
    return {};
  }
  std::map<std::string, at::Tensor> here(whole.begin(), whole.end());
  NamedTensors all;
  for (const auto& [name, shape] : lm_parameter_shapes(state.config)) {
    const int from = rank_of(name);
    if (from == 0) {
      all.emplace_back(name, here.at(name));
      continue;
    }
    const at::Tensor tensor =
        at::empty(shape, at::TensorOptions(state.options.dtype).device(state.comm.device()));
    state.comm.irecv(tensor, from, kTag).wait();
    all.emplace_back(name, tensor);
  }
  return all;
}

std::string ParallelLm::str() const {
  const State& state = *state_;
  std::ostringstream out;
  out << state.mesh.str();
  const auto& units = state.lm->unit_names();
  int first = 0;
  for (size_t chunk = 0; chunk < state.how.cut.size(); ++chunk) {
    const int behind = first + state.how.cut[chunk];
    out << "\n  stage " << state.schedule.stage_of[chunk] << ": "
        << units[static_cast<size_t>(first)];
    if (behind - first > 1) out << " to " << units[static_cast<size_t>(behind) - 1];
    first = behind;
  }
  int64_t mine = 0;
  for (const LmParameterPart& part : state.own) mine += part.copy ? 0 : part.tensor.numel();
  out << "\n  rank " << state.comm.rank() << " has " << mine << " of "
      << parameter_count(state.config) << " parameters";
  return out.str();
}

}  // namespace lockstep
