// The parameters and buffers of a model, as a safetensors file under their names (which equal
// Python's state_dict(), except that of a TorchScript module non-persistent buffers and plain tensor
// attributes are there too). A model is one of any kind: a module, its holder, a TorchScript module, a
// TensorModel (flat/named_tensors.h); or the list of its tensors, with which all of this is done.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// The model's parameters, then its buffers; the tensors are the model's own, not copies.
template <ModuleOrHolder M>
NamedTensors module_state(const M& model) {
  return state_of(model);
}

// Removes from the names what PyTorch's wrappers add to them: a leading "module." of all names
// (DistributedDataParallel, DataParallel), and "_orig_mod." (torch.compile),
// "_fsdp_wrapped_module." and "_checkpoint_wrapped_module." before any part of a name, in any
// nesting. Returns what was removed, such as "_orig_mod.module."; "" where nothing was, or where
// two names would have become one.
LOCKSTEP_API std::string strip_wrapper_prefixes(NamedTensors* state);

// Copies `state` into the tensors `own`, each on its device. Names, shapes and dtypes must be the
// same on both sides, except for what strip_wrapper_prefixes() removes from the names of `state`; a
// "module." stays where a name of `own` begins so. Otherwise throws one CheckpointError that begins
// with `source` and lists the differences, and the tensors are unchanged.
LOCKSTEP_API void set_module_state(const NamedTensors& own, const NamedTensors& state,
                                   const std::string& source);
template <ModuleOrHolder M>
void set_module_state(M& model, const NamedTensors& state, const std::string& source) {
  set_module_state(state_of(model), state, source);
}
// Throws as set_module_state(); copies nothing, and the tensors of `state` may be on meta.
LOCKSTEP_API void check_module_state(const NamedTensors& own, const NamedTensors& state,
                                     const std::string& source);
template <ModuleOrHolder M>
void check_module_state(const M& model, const NamedTensors& state, const std::string& source) {
  check_module_state(state_of(model), state, source);
}

// Writes the model's state; the file appears whole or not at all. One rank calls it, usually rank
// 0. Throws SystemError that names the path.
LOCKSTEP_API void save(const NamedTensors& state, const std::filesystem::path& path,
                       const Metadata& metadata = {});
template <ModuleOrHolder M>
void save(const M& model, const std::filesystem::path& path, const Metadata& metadata = {}) {
  save(state_of(model), path, metadata);
}

// Reads the model's state from a safetensors file, a file of Python's torch.save, the index of
// several, or a directory with one (tensor_file.h), from whatever device it was saved. Values go to
// each tensor's current device. Every rank that needs the values calls it. Returns the file's
// metadata.
// Throws: CheckpointError (missing, damaged, or of another model: every difference is listed); then
// the model is unchanged.
LOCKSTEP_API Metadata load(const NamedTensors& own, const std::filesystem::path& path);
// The same, and then the whole model is moved to `device`, where one is given.
template <ModuleOrHolder M>
Metadata load(M& model, const std::filesystem::path& path,
              std::optional<c10::Device> device = std::nullopt) {
  if constexpr (requires { module_in(model).to(*device); }) {
    Metadata metadata = load(state_of(model), path);
    if (device) module_in(model).to(*device);
    return metadata;
  } else {
    if (device)
      throw InvalidArgument("load: a model without to() stays on its device; leave out " +
                            device->str());
    return load(state_of(model), path);
  }
}

}  // namespace lockstep::inline v0
