// Checkpoints of a model that is divided among ranks: what each rank writes of its parameters and of its optimizer's
// state, and what a rank of any other division reads. The directory says nothing of the ranks: parameters and state
// have the whole model's names and shapes, in slices (slice_index.h).
//
//   PlacedParameters places = parts.places();           // TensorParts: of this part
//   // Along the axis "data" ranks have the same parameters: each writes some. ZeroOptimizer has divided its state
//   // along that axis, so each writes what it has; a plain optimizer's is written with its parameters: with `own`.
//   const PlacedParameters own = dealt(places, mesh.place("data"), mesh["data"].size());
//   Checkpoint share;
//   share.model_slices = slices_of_parameters(parameters_of(lm), own);
//   share.optimizer = slices_of_state(zero.own_state(), *parameter_names(*lm, zero), places);
//   join_groups(comm, share.optimizer);
//   write_checkpoint(comm, path, share);                // checkpoint_writer.h
//
//   const Checkpoint stored = read_checkpoint(path, CheckpointParts::kAll, ModelForm::kSlices);
//   load_parameters(parameters_of(lm), places, stored.model_slices, source);
//   zero.load_state(part_of_state(stored.optimizer, *parameter_names(*lm, zero), places, source), source);
//
// A stage of a pipeline does the same with its own parameters, and a rank that has the whole model as if nobody had
// divided it: read_checkpoint(), set_module_state(), by_position().
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
#include "lockstep/flat/named_tensors.h"

namespace lockstep {

// What this rank has of a parameter, or of a buffer.
struct PlacedParameter {
  std::vector<int64_t> shape;  // of the whole one
  TensorBox box = {};          // several ranks have one box, or their boxes are a grid
  bool writes = true;          // of the ranks with this box one does

  friend bool operator==(const PlacedParameter&, const PlacedParameter&) = default;
};
using PlacedParameters = std::map<std::string, PlacedParameter, std::less<>>;

// The same for one of `replicas` ranks that have the same parameters: each writes some of them, about as many elements
// as the others. Throws InvalidArgument for a replica that is none.
PlacedParameters dealt(PlacedParameters places, int replica, int replicas);

// Everything here but join_groups() is local. `mine` are tensors of the shapes of their boxes, on any device; each has
// a place, and places may be there without a tensor. Throws InvalidArgument where not.

// What this rank writes of them, for Checkpoint::model_slices: their own memory, where it is dense.
SlicedTensors slices_of_parameters(const NamedTensors& mine, const PlacedParameters& places);

// What this rank writes of its optimizer's state, for Checkpoint::optimizer. `state`: by position, of an optimizer
// whose parameters are `names`: optimizer_state(), or ZeroOptimizer::own_state(), whose slices are ranges of the parts.
// Tensors of a parameter's shape are put in its box; numbers, such as steps, are written with the box of the first
// indices. Of the options, this rank's, only parameters are listed whose numbers it writes. Throws InvalidArgument for
// a state of another shape.
SlicedTensors slices_of_state(SlicedTensors state, const ParameterNames& names,
                              const PlacedParameters& places);

// Makes rank 0's metadata, which a checkpoint has, that of all ranks' parameters (joined_groups()). Ranks without a
// state take part with {}. Some kilobytes are sent to rank 0. Collective, over the ranks that write the checkpoint;
// throws CheckpointError on all of them, on rank 0 InvalidArgument, where they do not go together.
void join_groups(Communicator& comm, SlicedTensors& state);

// Of a checkpoint's model (ModelForm::kSlices) what this rank has of `mine`: boxes that read what they are asked for.
// With stored_parts() the values of parameters that are born divided (ZeroOptions::initial). Throws CheckpointError
// that begins with `source`: a parameter is not there, or is of another shape.
SlicedTensors part_of_parameters(const SlicedTensors& stored, const NamedTensors& mine,
                                 const PlacedParameters& places, const std::string& source);
// Reads them into `mine`, converted to their types. Throws likewise, before any is changed.
void load_parameters(const NamedTensors& mine, const PlacedParameters& places,
                     const SlicedTensors& stored, const std::string& source);

// Of a checkpoint's optimizer's state what belongs to this rank's optimizer, whose parameters are `names`: by position,
// for ZeroOptimizer::load_state(), or, whole(), for set_optimizer_state(). Throws CheckpointError that begins with
// `source`: a parameter is not there, is of another shape, or grouped otherwise; a state by position.
SlicedTensors part_of_state(const SlicedTensors& stored, const ParameterNames& names,
                            const PlacedParameters& places, const std::string& source);

}  // namespace lockstep
