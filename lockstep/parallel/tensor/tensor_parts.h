// TensorParts: the parameters of a model that are divided among ranks by a plan: loaded, measured and put together
// again.
//
//   TensorParts parts(mesh["tensor"], plan, shapes);
//   parts.fill(parameters_of(model), values);               // this rank's slices, without the whole
//   parts.clip_gradients(parameters_of(model), 1.0);        // by the norm of the whole model's gradient
//   NamedTensors whole = parts.gather(parameters_of(model));  // on rank 0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/divided_state.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/parameter_parts.h"
#include "lockstep/parallel/tensor/tensor_plan.h"

namespace lockstep::inline v0 {

// One thread, the communicator's. `mine` is everywhere what this rank has: parameters of the whole model's names, in
// one order on all ranks, contiguous, of its slices' shapes; others are refused with InvalidArgument before anything is
// sent.
class LOCKSTEP_API TensorParts {
 public:
  // `whole`: the whole model's names and shapes. Keeps the handle; sends nothing. Throws InvalidArgument: plan.check().
  TensorParts(Communicator comm, TensorPlan plan, const NamedShapes& whole);

  const TensorPlan& plan() const { return plan_; }  // by which the model is divided
  // This rank's slice of a parameter. Throws InvalidArgument for an unknown name.
  PartSlice slice(const std::string& name) const;
  // Where this rank's slices are in a checkpoint (divided_state.h). What several parts have, the first writes. Along
  // further axes, such as a pipeline's stages or experts, a rank takes those of its own parameters.
  PlacedParameters places() const;

  // This rank's slices, row by row where columns are divided. Local.
  void fill(const NamedTensors& mine, const ParameterParts& values) const;
  // The same from tensors of the whole model. Throws InvalidArgument for one that is missing or of another shape.
  void copy(const NamedTensors& mine, const NamedTensors& whole) const;

  // The norm of the whole model's gradient, in float64: what is divided is added up over the parts, what several
  // parts have counts once. The same number on all ranks. 8 bytes are sent. Collective.
  double gradient_norm(const NamedTensors& mine);
  // Multiplies the gradients so that this norm is max_norm at most, as torch::nn::utils::clip_grad_norm_, and returns
  // what it was. Collective. Throws InvalidArgument unless max_norm is above 0.
  double clip_gradients(const NamedTensors& mine, double max_norm);

  // On the root the whole model's tensors, new ones, in the whole model's order; nothing on the others. Also of
  // gradients or an optimizer's moments under the parameters' names. What every part has is the root's. Of experts each
  // part gives those that are, in its own, where `mine` are in the others'. Collective.
  NamedTensors gather(const NamedTensors& mine, int root = 0);

 private:
  struct Place {
    std::vector<int64_t> shape;     // of the whole
    std::vector<PartSlice> slices;  // of the parts
  };
  const Place& place_of(const std::string& name) const;
  const PartSlice& own(const Place& place) const {
    return place.slices[static_cast<size_t>(comm_.rank())];
  }
  void check(const NamedTensors& mine) const;
  // The name of this part's expert in the place of another part's expert `name`.
  std::string counterpart(const std::string& name) const;

  Communicator comm_;
  TensorPlan plan_;
  std::vector<std::string> names_;  // in the whole model's order
  std::map<std::string, Place> places_;
};

// The parts of a TransformerLm, by lm_tensor_plan(). Sends nothing.
LOCKSTEP_API TensorParts lm_tensor_parts(const LmConfig& config, const Communicator& comm);
// The same by lm_expert_plan().
LOCKSTEP_API TensorParts lm_expert_parts(const LmConfig& config, const Communicator& comm);

}  // namespace lockstep::inline v0
