// WrappedParameters: a module's parameters as whoever wraps it has found them, so that a change behind
// its back is noticed.
//
// What averages, divides or copies gradients looks at the parameters once, when it is made: its hooks
// are on these tensors, its buckets of their sizes and types. A parameter that is added, replaced,
// unfrozen or converted afterwards would train on without it, and the ranks drift apart.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/flat/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep::flat {

// Kept, it keeps the tensors. The checks are for every forward: they compare pointers, types and flags.
class WrappedParameters {
 public:
  // `who`: whose messages these are, "DistributedDataParallel".
  WrappedParameters(std::string who, const NamedTensors& parameters);

  // Throws InvalidArgument unless one of them requires a gradient.
  void check_trained() const;
  // The rest throw InvalidArgument that names a parameter, what it was and what it is, and says what to
  // do. check_members(): the module, which may be another one by now, has these tensors and no others.
  void check_members(const torch::nn::Module& module) const;
  // check_kinds(): all have the shape, type and device that they had, also in between, and none requires a gradient that
  // required none. Frozen they may be.
  void check_kinds() const;
  void check(const torch::nn::Module& module) const {
    check_members(module);
    check_kinds();
  }

 private:
  struct Seen;
  std::string who_;
  std::shared_ptr<const std::vector<Seen>> seen_;  // in the module's order
};

}  // namespace lockstep::flat
