// Checkpoints of a model that is divided among ranks: what each rank writes of its parameters and
// its optimizer's state, and what a rank of any other division reads. The directory does not depend
// on the ranks: parameters and state have the whole model's names and shapes, in slices
// (slice_index.h).
//
//   PlacedParameters places = parts.places();  // TensorParts: of this part
//   // Along the axis "data" ranks have the same parameters, and each writes some of them.
//   // ZeroOptimizer has divided its state along that axis, so each rank writes its own part; the
//   // state of a plain optimizer is written with its parameters, that is with `own`.
//   const PlacedParameters own = dealt(places, mesh.place("data"), mesh["data"].size());
//   Checkpoint share;
//   share.model_slices = slices_of_parameters(parameters_of(lm), own);
//   share.optimizer = slices_of_state(zero.own_state(), *parameter_names(*lm, zero), places);
//   join_groups(comm, share.optimizer);
//   write_checkpoint(comm, path, share);  // checkpoint_writer.h
//
//   const Checkpoint stored = read_checkpoint(path, CheckpointParts::kAll, ModelForm::kSlices);
//   load_parameters(parameters_of(lm), places, stored.model_slices, source);
//   const ParameterNames names = *parameter_names(*lm, zero);
//   zero.load_state(part_of_state(stored.optimizer, names, places, source), source);
//
// A stage of a pipeline does the same with its own parameters. A rank with the whole model uses
// read_checkpoint(), set_module_state() and by_position(), as for an undivided checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/named_optimizer_state.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/checkpoint/tensor_box.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// This rank's part of a parameter or a buffer.
struct PlacedParameter {
  std::vector<int64_t> shape;  // of the whole tensor
  TensorBox box = {};          // several ranks have one box, or their boxes form a grid
  bool writes = true;          // one of the ranks with this box writes it

  friend bool operator==(const PlacedParameter&, const PlacedParameter&) = default;
};
// Parts by the names of their parameters.
using PlacedParameters = std::map<std::string, PlacedParameter, std::less<>>;

// The same for one of `replicas` ranks with the same parameters: each writes some of them, with
// about as many elements as the others.
// Throws: InvalidArgument for a replica out of range.
LOCKSTEP_API PlacedParameters dealt(PlacedParameters places, int replica, int replicas);

// All functions here except join_groups() are local. `mine` are tensors of the shapes of their
// boxes, on any device; each must have a place, and places may have no tensor; otherwise they throw
// InvalidArgument.

// The tensors that this rank writes, for Checkpoint::model_slices: views of their own memory, where
// it is dense.
LOCKSTEP_API SlicedTensors slices_of_parameters(const NamedTensors& mine,
                                                const PlacedParameters& places);

// The part of its optimizer's state that this rank writes, for Checkpoint::optimizer. `state`: by
// position, of an optimizer whose parameters are `names`: optimizer_state(), or
// ZeroOptimizer::own_state(), whose slices are ranges of the parts. Tensors of a parameter's shape
// are put in its box; numbers, such as steps, are written with the box of the first indices. This
// rank's options list only parameters whose numbers it writes.
// Throws: InvalidArgument for a state of another shape.
LOCKSTEP_API SlicedTensors slices_of_state(SlicedTensors state, const ParameterNames& names,
                                           const PlacedParameters& places);

// Extends rank 0's metadata, which the checkpoint gets, to all ranks' parameters (joined_groups()).
// Ranks without a state take part with {}. Sends some kilobytes to rank 0.
// Collective: the ranks that write the checkpoint.
// Throws: CheckpointError on all ranks, InvalidArgument on rank 0, where the ranks' metadata are
// incompatible.
LOCKSTEP_API void join_groups(Communicator& comm, SlicedTensors& state);

// This rank's parts of `mine` from a checkpoint's model (ModelForm::kSlices): boxes that read only
// what is requested. With stored_parts() they are the values of parameters with deferred
// initialization (ZeroOptions::initial).
// Throws: CheckpointError that begins with `source` if a parameter is missing or has another shape.
LOCKSTEP_API SlicedTensors part_of_parameters(const SlicedTensors& stored, const NamedTensors& mine,
                                              const PlacedParameters& places,
                                              const std::string& source);
// Reads them into `mine`, converted to their types. Throws likewise, before any tensor is changed.
LOCKSTEP_API void load_parameters(const NamedTensors& mine, const PlacedParameters& places,
                                  const SlicedTensors& stored, const std::string& source);

// The part of a checkpoint's optimizer state that belongs to this rank's optimizer, whose
// parameters are `names`: by position, for ZeroOptimizer::load_state() or, whole(), for
// set_optimizer_state().
// Throws: CheckpointError that begins with `source` if a parameter is missing, has another shape or
// another grouping, and for a state by position.
LOCKSTEP_API SlicedTensors part_of_state(const SlicedTensors& stored, const ParameterNames& names,
                                         const PlacedParameters& places, const std::string& source);

}  // namespace lockstep::inline v0
