// The state of an optimizer by the names of its parameters, as in checkpoint directories:
// "0.exp_avg" of optimizer_state.h is "embed.weight.exp_avg" here, and each parameter group's
// metadata lists its parameters:
//
//   "group.0": {"lr": 0.001, ..., "parameters": ["embed.weight", "layers.0.proj.weight"]}
//
// A state by position has their number there. A state by names does not depend on an optimizer's
// order of them. Only names change here: no values are copied.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace lockstep::inline v0 {

// The names of an optimizer's parameters, by group, in its order.
using ParameterNames = std::vector<std::vector<std::string>>;

// Their names among `parameters`; a parameter with several names has the first. nullopt where one
// is not among them, or the optimizer has one twice: then its state can only be identified by
// position.
LOCKSTEP_API std::optional<ParameterNames> parameter_names(
    const NamedTensors& parameters, const torch::optim::Optimizer& optimizer);
// Their names in a model of any kind (flat/named_tensors.h).
template <ModuleOrHolder M>
std::optional<ParameterNames> parameter_names(const M& model,
                                              const torch::optim::Optimizer& optimizer) {
  return parameter_names(parameters_of(model), optimizer);
}

// Whether a state is by names.
LOCKSTEP_API bool is_by_name(const Metadata& optimizer);

// Converts a state by position, whole or a rank's part of it (possibly without tensors or
// metadata), to names.
// Throws: InvalidArgument for a tensor of a position without a name.
LOCKSTEP_API SlicedTensors by_name(SlicedTensors state, const ParameterNames& names);

// Converts to positions, for an optimizer whose parameters are `names`; a state by position is
// returned unchanged. Groups and parameters may be in another order than in the state's source.
// Throws: a one-line CheckpointError that begins with `source` and names the parameter: one that is
// missing, left over, or no longer in one group with its former ones.
LOCKSTEP_API SlicedTensors by_position(SlicedTensors state, const ParameterNames& names,
                                       const std::string& source);

// The part of a state by names that belongs to these parameters, for an optimizer of a part of the
// model: other parameters are left out, and so are groups without any left, as far as there are
// more groups than the optimizer's.
// Throws: CheckpointError that begins with `source` for a state by position.
LOCKSTEP_API SlicedTensors of_parameters(SlicedTensors state, const ParameterNames& names,
                                         const std::string& source);

// Joins the metadata of states by names, from ranks whose optimizers have different or partly the
// same parameters, to that of one optimizer of all parameters; ranks without any are left out.
// Throws: InvalidArgument that names the rank for another kind of optimizer, number of groups or
// options than the first, or a parameter in another group.
LOCKSTEP_API Metadata joined_groups(const std::vector<Metadata>& of_ranks);

}  // namespace lockstep::inline v0
