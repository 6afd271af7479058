// WrappedParameters: a model's parameters as a wrapper has found them, to detect later changes.
//
// A wrapper that averages, divides or copies gradients reads the parameters once, when it is made:
// its hooks are on these tensors, and its buckets have their sizes and types. A parameter that is
// added, replaced, unfrozen or converted afterwards would train without it, and the ranks would
// drift apart.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0::flat {

// The parameters that require a gradient, each once: a tied one has several names, and keeps the
// first.
LOCKSTEP_API NamedTensors trained_once(NamedTensors parameters);

// It keeps the tensors alive. The checks are meant for every forward: they compare pointers, types
// and flags.
class LOCKSTEP_API WrappedParameters {
 public:
  // `who`: the wrapper's name in messages, "DistributedDataParallel".
  WrappedParameters(std::string who, const NamedTensors& parameters,
                    ModelKind kind = ModelKind::kModule);

  // Throws InvalidArgument unless one of them requires a gradient.
  void check_trained() const;
  // The other checks throw InvalidArgument that names a parameter, its former and current
  // properties, and the remedy. check_members(): the model, which may be another one by now, has
  // these tensors and no others.
  template <AnyModel M>
  void check_members(const M& model) const {
    if constexpr (ModuleOrHolder<M>) {
      auto& module = module_in(model);
      if constexpr (std::is_base_of_v<torch::nn::Module, std::remove_cvref_t<decltype(module)>>) {
        check_module(module);
        return;
      } else if constexpr (requires { module.parameters(); }) {  // without copies of names
        size_t next = 0;
        bool same = true;
        for (const at::Tensor& tensor : module.parameters())
          same = same && (!tensor.defined() || is_at(next++, tensor));
        if (same && next == count()) return;
      }
    }
    check_list(parameters_of(model));
  }
  // check_kinds(): all have had their shape, type and device all the time, and none requires a
  // gradient that required none before. They may be frozen.
  void check_kinds() const;
  template <AnyModel M>
  void check(const M& model) const {
    check_members(model);
    check_kinds();
  }

 private:
  struct Seen;
  void check_module(const torch::nn::Module& module) const;
  void check_list(const NamedTensors& now) const;
  bool is_at(size_t index, const at::Tensor& tensor) const;
  size_t count() const;

  std::string who_;
  ModelKind kind_;
  std::shared_ptr<const std::vector<Seen>> seen_;  // in the model's order
};

}  // namespace lockstep::inline v0::flat
