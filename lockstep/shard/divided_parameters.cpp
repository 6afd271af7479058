// What a rank has of a model: saved, loaded, put together.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "lockstep/checkpoint/divided_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/shard/internal/divided_parameters_state.h"

namespace lockstep::inline v0 {
namespace {

constexpr int kTag = 0x1a9;

NamedTensors tensors_of(const AveragedParameters& one) {
  NamedTensors tensors;
  for (const DividedParameter* part : one.parts) tensors.emplace_back(part->name, part->tensor);
  return tensors;
}

void merge(SlicedTensors& all, SlicedTensors some) {
  all.tensors.merge(some.tensors);
}

}  // namespace

DividedParameters::State::State(ModelDivision division)
    : ModelDivision(std::move(division)), places(parts.places()), classes(make_classes()) {}

DividedParameters::DividedParameters(ModelDivision division)
    : state_(std::make_unique<State>(std::move(division))) {}
DividedParameters::DividedParameters(DividedParameters&&) noexcept = default;
DividedParameters& DividedParameters::operator=(DividedParameters&&) noexcept = default;
DividedParameters::~DividedParameters() = default;

const std::vector<DividedParameter>& DividedParameters::own() const {
  return state_->own;
}
const NamedShapes& DividedParameters::whole_shapes() const {
  return state_->whole;
}

std::shared_ptr<void> DividedParameters::whole() {
  auto held = std::make_shared<std::vector<std::shared_ptr<void>>>();
  for (const AveragedParameters& one : state_->classes)
    if (auto whole = one.optimizer ? one.optimizer->whole_parameters() : nullptr)
      held->push_back(std::move(whole));
  return held->empty() ? nullptr : held;
}

// Of the ranks that have the same, the first along each axis puts its parts together, along tensor, and sends them to
// rank 0.
NamedTensors DividedParameters::gather() {
  State& state = *state_;
  const at::NoGradGuard no_grad;
  const auto is_sent_here = [&](const DividedParameter& part) {
    return !part.copy && std::all_of(part.averaged.begin(), part.averaged.end(),
                                     [&](const auto& axis) { return state.mesh.place(axis) == 0; });
  };
  const auto kept = whole();
  NamedTensors mine;
  for (const DividedParameter& part : state.own)
    if (is_sent_here(part)) mine.emplace_back(part.name, part.tensor);
  const NamedTensors whole = state.parts.gather(mine);
  if (state.comm.rank() != 0) {
    if (state.mesh.place("tensor") == 0)
      for (const auto& [name, tensor] : whole)
        state.comm.isend(tensor.contiguous(), 0, kTag).wait();
    return {};
  }
  const MeshLayout& layout = state.mesh.layout();
  const auto rank_of = [&](const std::string& name) {
    std::vector<int> places(layout.axes().size(), 0);
    for (const auto& [axis, place] : state.home(name)) places[layout.index_of(axis)] = place;
    return layout.rank_at(places);
  };
  const std::map<std::string, at::Tensor> here(whole.begin(), whole.end());
  NamedTensors all;
  for (const auto& [name, shape] : state.whole) {
    const int from = rank_of(name);
    if (from == 0) {
      all.emplace_back(name, here.at(name));
      continue;
    }
    const at::Tensor tensor =
        at::empty(shape, at::TensorOptions(state.dtype).device(state.comm.device()));
    state.comm.irecv(tensor, from, kTag).wait();
    all.emplace_back(name, tensor);
  }
  return all;
}

Checkpoint DividedParameters::share() {
  State& state = *state_;
  Checkpoint share;
  std::vector<Metadata> metadata;
  for (const AveragedParameters& one : state.classes) {
    PlacedParameters places;
    for (const DividedParameter* part : one.parts) {
      PlacedParameter place = state.places.at(part->name);
      place.writes = place.writes && !part->copy;
      places.emplace(part->name, std::move(place));
    }
    // Ranks that average a parameter's gradient have it. Of an undivided state the first of them says how many steps
    // there were (ZeroOptimizer::own_state()), so it writes all.
    const PlacedParameters own = dealt(places, one.averaged.rank(), one.averaged.size());
    merge(share.model_slices, slices_of_parameters(tensors_of(one), own));
    if (!one.optimizer) continue;
    if (state.zero == 0 && one.averaged.rank() > 0)
      for (auto& [name, place] : places) place.writes = false;
    SlicedTensors of = slices_of_state(one.optimizer->own_state(), one.names, places);
    metadata.push_back(std::move(of.metadata));
    merge(share.optimizer, std::move(of));
  }
  share.optimizer.metadata = joined_groups(metadata);
  join_groups(state.comm, share.optimizer);
  return share;
}

void DividedParameters::load(const Checkpoint& checkpoint, const std::string& source,
                             CheckpointParts parts) {
  State& state = *state_;
  // Of all stages, so that all ranks throw alike.
  for (const auto& [name, shape] : state.whole) {
    const SlicedTensor* found = checkpoint.model_slices.find(name);
    if (found == nullptr) throw CheckpointError(source + ": has no tensor '" + name + "'");
    if (found->sizes != shape)
      throw CheckpointError(source + ": the tensor '" + name + "' has another shape");
  }
  {
    const auto whole = this->whole();
    // Another rank may still compute with the parameters, which may be one memory.
    state.comm.barrier();
    for (const AveragedParameters& one : state.classes)
      load_parameters(tensors_of(one), state.places, checkpoint.model_slices, source);
    state.comm.barrier();
  }
  if (parts == CheckpointParts::kModelAndConfig) return;
  const std::string of_optimizer = source + ", its optimizer";
  for (const AveragedParameters& one : state.classes) {
    if (!one.optimizer) continue;
    one.optimizer->load_state(
        part_of_state(checkpoint.optimizer, one.names, state.places, of_optimizer), of_optimizer);
  }
}

}  // namespace lockstep::inline v0
