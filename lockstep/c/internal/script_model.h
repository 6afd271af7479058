// ScriptModel: a TorchScript module with its tensors by name.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0::c_api {

class ScriptModel {
 public:
  ScriptModel(torch::jit::Module module, at::Device device);

  const NamedTensors& parameters() const { return parameters_; }  // a tied one has several names
  const NamedTensors& buffers() const { return buffers_; }
  NamedTensors state() const;  // the parameters, then the buffers
  at::Device device() const { return device_; }
  // The parameters that require gradients, each once.
  NamedTensors trained() const;

  // In the mode that train() or eval() has set. The outputs: a tensor, or those of a tuple or list;
  // none shares memory with an input.
  // Throws: InvalidArgument for another result; what the model throws.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);
  void train() { module_.train(); }
  void eval() { module_.eval(); }

  // Copies `state` into the tensors. Throws: a CheckpointError that begins with `source` and names the first
  // tensor that is missing, left over or of another shape or type; then nothing has changed. check_state() throws
  // alike, and copies nothing.
  void check_state(const NamedTensors& state, const std::string& source) const;
  void set_state(const NamedTensors& state, const std::string& source);

  // Writes a TorchScript file, which appears whole or not at all.
  void save(const std::filesystem::path& path) const;

 private:
  torch::jit::Module module_;
  at::Device device_;
  NamedTensors parameters_;
  NamedTensors buffers_;
};

// Throws: DataError in one line for a file that is missing or no TorchScript.
torch::jit::Module read_script(const std::string& path, at::Device device);

// A net of fully connected layers, as lockstep_model_mlp() describes it.
torch::jit::Module make_mlp(const std::vector<int64_t>& sizes, const std::string& activation,
                            at::ScalarType dtype, uint64_t seed);

// A forward's result as tensors. Throws: InvalidArgument for a result of another kind.
std::vector<at::Tensor> result_tensors(const c10::IValue& result);

}  // namespace lockstep::inline v0::c_api
