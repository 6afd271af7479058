// The whole model, put together; and who has what, in words.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "lockstep/parallel/lm/internal/state.h"

namespace lockstep {
namespace {

constexpr int kTag = 0x1a9;

}  // namespace

NamedTensors ParallelLm::gather() {
  State& state = *state_;
  const at::NoGradGuard no_grad;
  // Of each stage the ranks in place 0 of all axes but tensor have its parts.
  const std::vector<std::string> others{"data", "context", "expert"};
  bool takes_part = true;
  for (const std::string& axis : others) takes_part = takes_part && state.mesh.place(axis) == 0;
  NamedTensors mine;
  std::vector<std::shared_ptr<void>> kept;
  for (const LmParameterClass& one : state.classes)
    kept.push_back(one.optimizer->whole_parameters());
  for (const LmParameterPart& part : state.own)
    if (!part.copy) mine.emplace_back(part.name, part.tensor);
  NamedTensors whole;
  if (takes_part) whole = state.parts.gather(mine);
  const bool is_root = state.comm.rank() == 0;
  // What the stages told rank 0 in the model's order: each parameter has one sender.
  std::map<std::string, int> stage_of;
  for (int stage = 0; stage < state.schedule.stages; ++stage)
    for (const std::string& name : state.chunks->parameters_of(state.schedule, stage))
      stage_of.emplace(name, stage);
  const MeshLayout& layout = state.mesh.layout();
  const auto rank_of = [&](int stage) {
    std::vector<int> places(layout.axes().size(), 0);
    places[layout.index_of("pipe")] = stage;
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
    const int from = rank_of(stage_of.at(name));
    if (from == 0) {
      all.emplace_back(name, here.at(name));
      continue;
    }
    const at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(state.options.dtype));
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
