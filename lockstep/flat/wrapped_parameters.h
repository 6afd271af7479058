// WrappedParameters: a module's parameters as a wrapper has found them, to detect later changes.
//
// A wrapper that averages, divides or copies gradients reads the parameters once, when it is made:
// its hooks are on these tensors, and its buckets have their sizes and types. A parameter that is
// added, replaced, unfrozen or converted afterwards would train without it, and the ranks would
// drift apart.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0::flat {

// It keeps the tensors alive. The checks are meant for every forward: they compare pointers, types
// and flags.
class LOCKSTEP_API WrappedParameters {
 public:
  // `who`: the wrapper's name in messages, "DistributedDataParallel".
  WrappedParameters(std::string who, const NamedTensors& parameters);

  // Throws InvalidArgument unless one of them requires a gradient.
  void check_trained() const;
  // The other checks throw InvalidArgument that names a parameter, its former and current
  // properties, and the remedy. check_members(): the module, which may be another one by now, has
  // these tensors and no others.
  void check_members(const torch::nn::Module& module) const;
  // check_kinds(): all have had their shape, type and device all the time, and none requires a
  // gradient that required none before. They may be frozen.
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

}  // namespace lockstep::inline v0::flat
