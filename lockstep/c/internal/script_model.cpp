#include "lockstep/c/internal/script_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cmath>
#include <map>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "lockstep/core/aside_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::c_api {
namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string kind_of(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.sizes() << ' ' << tensor.dtype().name();
  return out.str();
}

}  // namespace

ScriptModel::ScriptModel(torch::jit::Module module, at::Device device)
    : module_(std::move(module)), device_(device) {
  for (const auto& parameter : module_.named_parameters())
    parameters_.emplace_back(parameter.name, parameter.value);
  for (const auto& buffer : module_.named_buffers())
    buffers_.emplace_back(buffer.name, buffer.value);
}

NamedTensors ScriptModel::state() const {
  NamedTensors all = parameters_;
  all.insert(all.end(), buffers_.begin(), buffers_.end());
  return all;
}

NamedTensors ScriptModel::trained() const {
  NamedTensors result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, parameter] : parameters_) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      result.emplace_back(name, parameter);
  }
  return result;
}

std::vector<at::Tensor> result_tensors(const c10::IValue& result) {
  if (result.isTensor()) return {result.toTensor()};
  if (result.isTensorList()) return result.toTensorVector();
  if (result.isTuple()) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& element : result.toTupleRef().elements()) {
      if (!element.isTensor()) break;
      tensors.push_back(element.toTensor());
    }
    if (tensors.size() == result.toTupleRef().elements().size()) return tensors;
  }
  throw InvalidArgument("the model's forward returns " + result.tagKind() +
                        "; it must return a tensor, or a tuple or list of tensors");
}

std::vector<at::Tensor> ScriptModel::forward(const std::vector<at::Tensor>& inputs) {
  std::vector<c10::IValue> values;
  for (const at::Tensor& input : inputs) values.emplace_back(input.to(device_));
  std::vector<at::Tensor> outputs = result_tensors(module_.forward(std::move(values)));
  for (at::Tensor& output : outputs) {
    for (const at::Tensor& input : inputs) {
      if (!output.has_storage() || !output.is_alias_of(input)) continue;
      output = output.clone();
      break;
    }
  }
  return outputs;
}

void ScriptModel::check_state(const NamedTensors& state, const std::string& source) const {
  std::map<std::string, at::Tensor> left(state.begin(), state.end());
  for (const auto& [name, tensor] : this->state()) {
    const auto found = left.find(name);
    if (found == left.end()) throw CheckpointError(source + ": has no " + name);
    if (found->second.sizes() != tensor.sizes() || found->second.dtype() != tensor.dtype()) {
      throw CheckpointError(source + ": " + name + " is " + kind_of(found->second) + " there and " +
                            kind_of(tensor) + " in the model");
    }
    left.erase(found);
  }
  if (!left.empty())
    throw CheckpointError(source + ": has " + left.begin()->first + ", which the model has not");
}

void ScriptModel::set_state(const NamedTensors& state, const std::string& source) {
  check_state(state, source);
  const at::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> values(state.begin(), state.end());
  for (const auto& [name, tensor] : this->state()) {
    at::Tensor target = tensor.detach();
    target.copy_(values.at(name));
  }
}

void ScriptModel::save(const std::filesystem::path& path) const {
  AsideFile file(path);
  torch::jit::ExportModule(module_, [&file](const void* data, size_t size) {
    file.write(data, size);
    return size;
  });
  file.commit();
}

torch::jit::Module read_script(const std::string& path, at::Device device) {
  if (!std::filesystem::is_regular_file(path))
    throw DataError(path + ": there is no such TorchScript file");
  try {
    return torch::jit::load(path, device);
  } catch (const c10::Error& error) {
    throw DataError(path +
                    ": not a TorchScript file: " + first_line(error.what_without_backtrace()));
  }
}

torch::jit::Module make_mlp(const std::vector<int64_t>& sizes, const std::string& activation,
                            at::ScalarType dtype, uint64_t seed) {
  static const std::map<std::string, std::string> kActivations{{"tanh", "torch.tanh"},
                                                               {"relu", "torch.relu"},
                                                               {"gelu", "torch.gelu"},
                                                               {"silu", "torch.silu"}};
  const auto found = kActivations.find(activation);
  if (found == kActivations.end()) {
    throw InvalidArgument("there is no activation '" + activation +
                          "'; give tanh, relu, gelu or silu");
  }
  if (dtype != at::kFloat && dtype != at::kDouble)
    throw InvalidArgument("dtype: a network is float32 or float64");
  if (sizes.size() < 2)
    throw InvalidArgument("sizes: a network has 2 sizes or more, not " +
                          std::to_string(sizes.size()));
  for (const int64_t size : sizes) {
    if (size < 1 || size > (int64_t{1} << 24))
      throw InvalidArgument("sizes: a layer of " + std::to_string(size) + "; give 1 to 2^24");
  }
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto units = std::make_shared<torch::jit::CompilationUnit>();
  torch::jit::Module net("__torch__.Mlp", units), layers("__torch__.Layers", units);
  std::string forward = "def forward(self, x):\n";
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    const double bound = 1 / std::sqrt(static_cast<double>(sizes[i]));
    torch::jit::Module layer("__torch__.Linear" + std::to_string(i), units);
    const auto values = [&](at::IntArrayRef shape) {
      return at::empty(shape, dtype).uniform_(-bound, bound, generator).set_requires_grad(true);
    };
    layer.register_parameter("weight", values({sizes[i + 1], sizes[i]}), false);
    layer.register_parameter("bias", values({sizes[i + 1]}), false);
    layers.register_module(std::to_string(i), layer);
    const std::string self = "getattr(self.layers, \"" + std::to_string(i) + "\")";
    forward += "  x = torch.linear(x, " + self + ".weight, " + self + ".bias)\n";
    if (i + 2 < sizes.size()) forward += "  x = " + found->second + "(x)\n";
  }
  net.register_module("layers", layers);
  net.register_attribute("training", c10::BoolType::get(), true);
  net.define(forward + "  return x\n");
  return net;
}

}  // namespace lockstep::inline v0::c_api
