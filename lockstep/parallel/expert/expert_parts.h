// ExpertParts: the parameters of a language model whose experts are divided among ranks: measured, and put
// together again.
//
//   ExpertParts parts(config, mesh["expert"]);
//   parts.clip_gradients(parameters_of(lm), 1.0);             // by the norm of the whole model's gradient
//   NamedTensors whole = parts.gather(parameters_of(lm));     // on rank 0
#pragma once

#include <cstdint>

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/model/lm_config.h"

namespace lockstep {

// One thread, the communicator's. `mine` is what this rank has, in the model's order: experts' parameters that are
// its own, and others, of which all ranks have the same. One that is another rank's expert's is refused with
// InvalidArgument before anything is sent.
class ExpertParts {
 public:
  // Keeps the handle; sends nothing. Throws InvalidArgument: check(config), experts that do not divide.
  ExpertParts(const LmConfig& config, Communicator comm);

  // Of the whole model's gradient, in float64: experts' are added up over the ranks, others count once. The same on
  // all ranks. 8 bytes are sent. Collective.
  double gradient_norm(const NamedTensors& mine);
  // Multiplies the gradients so that this norm is max_norm at most, as torch::nn::utils::clip_grad_norm_, and returns
  // what it was. Collective. Throws InvalidArgument unless max_norm is above 0.
  double clip_gradients(const NamedTensors& mine, double max_norm);

  // On the root the whole model's tensors, new ones, in its order; nothing on the others. Also of gradients or an
  // optimizer's moments under the parameters' names. What every rank has is the root's. Collective.
  NamedTensors gather(const NamedTensors& mine, int root = 0);

 private:
  void check(const NamedTensors& mine) const;

  int64_t each_;
  Communicator comm_;
};

}  // namespace lockstep
