// The state of DividedParameters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/divided_state.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/shard/divided_parameters.h"

namespace lockstep::inline v0 {

// Parameters whose gradients are averaged by the same ranks, and of which the same ranks count in the model's norm.
struct AveragedParameters {
  std::vector<const DividedParameter*> parts;
  Communicator averaged;      // over
  bool counts = true;         // in the norm of the whole model, on this rank
  ParameterNames names = {};  // of the optimizer's groups
  std::unique_ptr<ZeroOptimizer> optimizer = nullptr;  // none: none of them is in a group
};

struct DividedParameters::State : ModelDivision {
  explicit State(ModelDivision division);
  std::vector<AveragedParameters> make_classes() const;
  std::vector<at::Tensor> without_optimizer() const;  // of this rank

  PlacedParameters places;
  std::vector<AveragedParameters> classes;
  bool has_optimizer = false;
  std::vector<at::Tensor> untrained;  // of this rank, in none of the optimizer's groups
};

}  // namespace lockstep::inline v0
