// The state of an optimizer by the names of its parameters, as checkpoint directories hold it: "0.exp_avg"
// of optimizer_state.h is "embed.weight.exp_avg" here, and each parameter group's metadata lists its
// parameters:
//
//   "group.0": {"lr": 0.001, ..., "parameters": ["embed.weight", "layers.0.proj.weight"]}
//
// where a state by position says how many there are. So it is the same in whatever order an optimizer
// has them. Only names change here: no values are copied.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/sliced_tensors.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace lockstep {

// The names of an optimizer's parameters, by group, in its order.
using ParameterNames = std::vector<std::vector<std::string>>;

// As `model` names them; a parameter with several names has the first. Nothing where one is not the model's, or
// the optimizer has one twice: then its state is known by position alone.
std::optional<ParameterNames> parameter_names(const torch::nn::Module& model,
                                              const torch::optim::Optimizer& optimizer);

// True for a state by names.
bool is_by_name(const Metadata& optimizer);

// A state by position, whole or a rank's part of it (without tensors or metadata, it may be), by names.
// Throws InvalidArgument for a tensor of a position that has no name.
SlicedTensors by_name(SlicedTensors state, const ParameterNames& names);

// And by position, for an optimizer whose parameters are `names`; one by position is returned as it is.
// Groups and parameters may be in another order than where the state is from. Throws CheckpointError of one
// line that begins with `source` and names the parameter: one that is missing, left over, or no longer in one
// group with those that it was with.
SlicedTensors by_position(SlicedTensors state, const ParameterNames& names,
                          const std::string& source);

// Of a state by names what is of these parameters, for an optimizer of a part of the model: others are left out, and
// groups that had nothing else, as far as there are more groups than the optimizer's. Throws CheckpointError that
// begins with `source`: a state by position.
SlicedTensors of_parameters(SlicedTensors state, const ParameterNames& names,
                            const std::string& source);

// The metadata of states by names, of ranks whose optimizers have different parameters, or some the same ones, as that
// of one optimizer of them all; ranks with none are left out. Throws InvalidArgument that names the rank: another kind
// of optimizer, number of groups or options than the first, or a parameter in another group.
Metadata joined_groups(const std::vector<Metadata>& of_ranks);

}  // namespace lockstep
