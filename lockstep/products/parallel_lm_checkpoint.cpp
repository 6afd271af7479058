// What a rank writes of the whole model, and takes over.
#include <utility>

#include "lockstep/checkpoint/divided_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/products/internal/state.h"

namespace lockstep {
namespace {

NamedTensors tensors_of(const LmParameterClass& one) {
  NamedTensors tensors;
  for (const LmParameterPart* part : one.parts) tensors.emplace_back(part->name, part->tensor);
  return tensors;
}

void merge(SlicedTensors& all, SlicedTensors some) {
  all.tensors.merge(some.tensors);
}

}  // namespace

Checkpoint ParallelLm::share() {
  State& state = *state_;
  Checkpoint share;
  std::vector<Metadata> metadata;
  for (const LmParameterClass& one : state.classes) {
    PlacedParameters places;
    for (const LmParameterPart* part : one.parts) {
      PlacedParameter place = state.places.at(part->name);
      place.writes = place.writes && !part->copy;
      places.emplace(part->name, std::move(place));
    }
    // Ranks that average a parameter's gradient have it. Of an undivided state the first of them says how many steps
    // there were (ZeroOptimizer::own_state()), so it writes all.
    const PlacedParameters own = dealt(places, one.averaged.rank(), one.averaged.size());
    merge(share.model_slices, slices_of_parameters(tensors_of(one), own));
    if (!one.optimizer) continue;
    if (state.how.zero == 0 && one.averaged.rank() > 0)
      for (auto& [name, place] : places) place.writes = false;
    SlicedTensors of = slices_of_state(one.optimizer->own_state(), one.names, places);
    metadata.push_back(std::move(of.metadata));
    merge(share.optimizer, std::move(of));
  }
  share.optimizer.metadata = joined_groups(metadata);
  join_groups(state.comm, share.optimizer);
  return share;
}

void ParallelLm::load(const Checkpoint& checkpoint, const std::string& source,
                      CheckpointParts parts) {
  State& state = *state_;
  // Of all stages, so that all ranks throw alike.
  for (const auto& [name, shape] : lm_parameter_shapes(state.config)) {
    const SlicedTensor* found = checkpoint.model_slices.find(name);
    if (found == nullptr) throw CheckpointError(source + ": has no tensor '" + name + "'");
    if (found->sizes != shape)
      throw CheckpointError(source + ": the tensor '" + name + "' has another shape");
  }
  {
    const auto whole = whole_parameters();
    // Another rank may still compute with the parameters, which may be one memory.
    state.comm.barrier();
    for (const LmParameterClass& one : state.classes)
      load_parameters(tensors_of(one), state.places, checkpoint.model_slices, source);
    state.comm.barrier();
  }
  if (parts == CheckpointParts::kModelAndConfig) return;
  const std::string of_optimizer = source + ", its optimizer";
  for (const LmParameterClass& one : state.classes) {
    if (!one.optimizer) continue;
    one.optimizer->load_state(
        part_of_state(checkpoint.optimizer, one.names, state.places, of_optimizer), of_optimizer);
  }
}

}  // namespace lockstep
