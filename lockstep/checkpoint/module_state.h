// The parameters and buffers of a module, as a safetensors file under their names (which equal
// Python's state_dict()).
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/export.h"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace lockstep::inline v0 {

// The module's parameters, then its buffers; the tensors are the module's own, not copies.
LOCKSTEP_API NamedTensors module_state(const torch::nn::Module& module);

// Removes from the names what PyTorch's wrappers add to them: a leading "module." of all names
// (DistributedDataParallel, DataParallel), and "_orig_mod." (torch.compile),
// "_fsdp_wrapped_module." and "_checkpoint_wrapped_module." before any part of a name, in any
// nesting. Returns what was removed, such as "_orig_mod.module."; "" where nothing was, or where
// two names would have become one.
LOCKSTEP_API std::string strip_wrapper_prefixes(NamedTensors* state);

// Copies `state` into the module's tensors, each on its device. Names, shapes and dtypes must be
// the same on both sides, except for what strip_wrapper_prefixes() removes from the names of
// `state`; a "module." stays where a name of the module begins so. Otherwise throws one
// CheckpointError that begins with `source` and lists the differences, and the module is unchanged.
LOCKSTEP_API void set_module_state(torch::nn::Module& module, const NamedTensors& state,
                                   const std::string& source);
// Throws as set_module_state(); copies nothing, and the tensors of `state` may be on meta.
LOCKSTEP_API void check_module_state(const torch::nn::Module& module, const NamedTensors& state,
                                     const std::string& source);

// Writes the module's state; the file appears whole or not at all. One rank calls it, usually rank
// 0. Throws SystemError that names the path.
LOCKSTEP_API void save(const torch::nn::Module& module, const std::filesystem::path& path,
                       const Metadata& metadata = {});

// Reads the module's state from a safetensors file, a file of Python's torch.save, the index of
// several, or a directory with one (tensor_file.h), from whatever device it was saved. Values go to
// each parameter's current device, or the whole module is moved to `device` first. Every rank that
// needs the values calls it. Returns the file's metadata.
// Throws: CheckpointError (missing, damaged, or of another model: every difference is listed); then
// the module is unchanged.
LOCKSTEP_API Metadata load(torch::nn::Module& module, const std::filesystem::path& path,
                           std::optional<c10::Device> device = std::nullopt);

// The same for a module's holder, such as SimpleCnn.
template <typename Contained>
void save(const torch::nn::ModuleHolder<Contained>& module, const std::filesystem::path& path,
          const Metadata& metadata = {}) {
  save(static_cast<const torch::nn::Module&>(*module), path, metadata);
}
template <typename Contained>
Metadata load(torch::nn::ModuleHolder<Contained>& module, const std::filesystem::path& path,
              std::optional<c10::Device> device = std::nullopt) {
  return load(static_cast<torch::nn::Module&>(*module), path, device);
}

}  // namespace lockstep::inline v0
