// The parameters and buffers of a module, as a safetensors file under their names (which equal
// Python's state_dict()).
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace lockstep {

// The module's parameters, then its buffers; the tensors are the module's own, not copies.
NamedTensors module_state(const torch::nn::Module& module);

// What wrapped modules (PyTorch's DistributedDataParallel and DataParallel) write before each name.
inline constexpr std::string_view kModulePrefix = "module.";

// Takes one leading "module." from every name, if every name has it, and says whether it did.
bool strip_module_prefix(NamedTensors* state);

// Copies `state` into the module's tensors, each on the device where it is. Names, shapes and
// dtypes must be the same on both sides, but for a leading "module." of all names of `state` where
// no name of the module begins so: that is stripped. Otherwise throws one CheckpointError that
// begins with `source` and lists what differs, and the module is unchanged.
void set_module_state(torch::nn::Module& module, const NamedTensors& state,
                      const std::string& source);
// Throws what set_module_state() would; nothing is copied, and the tensors of `state` may be on meta.
void check_module_state(const torch::nn::Module& module, const NamedTensors& state,
                        const std::string& source);

// Writes the module's state; the file appears whole or not at all. One rank calls (rank 0, as a
// rule). Throws SystemError that names the path.
void save(const torch::nn::Module& module, const std::filesystem::path& path,
          const Metadata& metadata = {});

// Reads the module's state from a safetensors file, a file of Python's torch.save, the index of
// several, or a directory with one (tensor_file.h), whatever device it came from. Values go to the
// device where each parameter already is, or the whole module is moved to `device` first. Every
// rank that wants the values calls. Returns the file's metadata. Throws CheckpointError (missing,
// damaged, or of another model: every difference is listed); then the module is unchanged.
Metadata load(torch::nn::Module& module, const std::filesystem::path& path,
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

}  // namespace lockstep
