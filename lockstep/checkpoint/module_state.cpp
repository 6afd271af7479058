#include "lockstep/checkpoint/module_state.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.sizes() << ' ' << tensor.dtype().name();
  return out.str();
}

// A comma-separated list that stays one readable line.
class Listing {
 public:
  void add(const std::string& item) {
    constexpr int kMost = 8;
    if (count_ < kMost) text_ += (count_ == 0 ? "" : ", ") + item;
    ++count_;
    if (count_ > kMost) tail_ = " and " + std::to_string(count_ - kMost) + " more";
  }
  bool empty() const { return count_ == 0; }
  std::string str() const { return text_ + tail_; }

 private:
  std::string text_, tail_;
  int count_ = 0;
};

// "" when the two hold the same names, shapes and dtypes.
std::string differences(const NamedTensors& module, const std::map<std::string, at::Tensor>& file) {
  Listing missing, unexpected, other;
  std::map<std::string, at::Tensor> left = file;
  for (const auto& [name, tensor] : module) {
    const auto found = file.find(name);
    if (found == file.end()) {
      missing.add(name);
      continue;
    }
    left.erase(name);
    if (found->second.sizes() != tensor.sizes() ||
        found->second.scalar_type() != tensor.scalar_type()) {
      other.add(name + " is " + shape_of(found->second) + " there and " + shape_of(tensor) +
                " in the model");
    }
  }
  for (const auto& [name, tensor] : left) unexpected.add(name);
  std::string text;
  const auto append = [&text](const Listing& list, const char* label) {
    if (!list.empty()) text += (text.empty() ? "" : "; ") + std::string(label) + list.str();
  };
  append(missing, "missing: ");
  append(unexpected, "unexpected: ");
  append(other, "different: ");
  return text;
}

}  // namespace

NamedTensors module_state(const torch::nn::Module& module) {
  NamedTensors state = to_named_tensors(module.named_parameters());
  const NamedTensors buffers = to_named_tensors(module.named_buffers());
  state.insert(state.end(), buffers.begin(), buffers.end());
  return state;
}

bool strip_module_prefix(NamedTensors* state) {
  const auto has_prefix = [](const auto& entry) { return entry.first.starts_with(kModulePrefix); };
  if (state->empty() || !std::all_of(state->begin(), state->end(), has_prefix)) return false;
  for (auto& [name, tensor] : *state) name.erase(0, kModulePrefix.size());
  return true;
}

namespace {

// What set_module_state() copies, by the module's names. Throws as it does.
std::map<std::string, at::Tensor> fitting(const NamedTensors& own, const NamedTensors& state,
                                          const std::string& source) {
  NamedTensors given = state;
  const bool stripped =
      std::none_of(own.begin(), own.end(),
                   [](const auto& entry) { return entry.first.starts_with(kModulePrefix); }) &&
      strip_module_prefix(&given);
  std::map<std::string, at::Tensor> values(given.begin(), given.end());
  const std::string difference = differences(own, values);
  if (!difference.empty()) {
    throw CheckpointError(source + ": does not fit the model" +
                          (stripped ? " (a leading 'module.' left out): " : ": ") + difference +
                          "; load it into the model that it was saved from");
  }
  return values;
}

}  // namespace

void check_module_state(const torch::nn::Module& module, const NamedTensors& state,
                        const std::string& source) {
  fitting(module_state(module), state, source);
}

void set_module_state(torch::nn::Module& module, const NamedTensors& state,
                      const std::string& source) {
  const NamedTensors own = module_state(module);
  const auto values = fitting(own, state, source);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) tensor.copy_(values.at(name));
}

void save(const torch::nn::Module& module, const std::filesystem::path& path,
          const Metadata& metadata) {
  write_safetensors(path, module_state(module), metadata);
}

Metadata load(torch::nn::Module& module, const std::filesystem::path& path,
              std::optional<c10::Device> device) {
  Safetensors file = read_tensor_file(path).contents;
  set_module_state(module, file.tensors, path.string());
  if (device) module.to(*device);
  return std::move(file.metadata);
}

}  // namespace lockstep
