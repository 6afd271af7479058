#include "lockstep/train/run_state.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/named_optimizer_state.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/checkpoint/scaler_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/train/strategy.h"

namespace lockstep {
namespace {

constexpr const char* kGenerators = "cpu_generator";  // uint8 [ranks, bytes]
constexpr const char* kScaler = "scaler.json";

// The module's own tensors but those that a strategy which has_parts() divides.
NamedTensors others_of(const torch::nn::Module& model, const Strategy& strategy) {
  const std::set<std::string> divided = strategy.divided_names();
  NamedTensors others;
  for (const auto& entry : module_state(model))
    if (!divided.contains(entry.first)) others.push_back(entry);
  return others;
}

void load_others(const NamedTensors& others, const SlicedTensors& stored,
                 const std::string& source) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : others) {
    const SlicedTensor* const found = stored.find(name);
    if (found == nullptr || tensor.sizes() != at::IntArrayRef(found->sizes))
      throw CheckpointError(source + ": has no tensor '" + name + "' of the model's shape");
  }
  for (const auto& [name, tensor] : others) tensor.copy_(stored.find(name)->whole());
}

// Of a checkpoint that was read in model_form().
void load_parameters(const Communicator& comm, torch::nn::Module& model, Strategy& strategy,
                     const Checkpoint& checkpoint, const std::string& source) {
  const std::string file = source + "/model.safetensors";
  if (strategy.has_parts()) {
    strategy.load_parameters(checkpoint.model_slices, file);
    load_others(others_of(model, strategy), checkpoint.model_slices, file);
    return;
  }
  const auto whole = strategy.whole_parameters();
  // Another rank may still compute with the parameters, which may be one memory.
  Communicator(comm).barrier();
  set_module_state(model, checkpoint.model.tensors, file);
}

Safetensors weights_of(const torch::nn::Module& model) {
  return {.tensors = module_state(model), .metadata = {{"format", "pt"}}};
}

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// Which rank writes what of a model that all have: parameters where there is least so far, and
// buffers, which may differ from rank to rank, on rank 0.
Safetensors dealt(Safetensors weights, const torch::nn::Module& model, int rank, int ranks) {
  std::set<std::string> parameters;
  for (const auto& [name, tensor] : parameters_of(model)) parameters.insert(name);
  std::vector<int64_t> load(static_cast<size_t>(ranks), 0);
  NamedTensors own;
  for (const auto& entry : weights.tensors) {
    const bool divided = parameters.count(entry.first) != 0;
    const auto to = divided ? std::min_element(load.begin(), load.end()) : load.begin();
    *to += static_cast<int64_t>(entry.second.nbytes());
    if (to - load.begin() == rank) own.push_back(entry);
  }
  weights.tensors = std::move(own);
  return weights;
}

}  // namespace

ModelForm model_form(const Strategy& strategy) {
  return strategy.divides_model() || strategy.has_parts() ? ModelForm::kSlices : ModelForm::kWhole;
}

const at::Tensor& of_all_ranks(const Safetensors& file, const char* name,
                               const std::string& source) {
  const at::Tensor* tensor = file.find(name);
  if (tensor == nullptr || tensor->dim() != 2 || tensor->size(0) < 1)
    throw CheckpointError(source + ": has no " + name);
  return *tensor;
}

void save_model(const torch::nn::Module& model, const CheckpointFiles& files,
                const std::filesystem::path& path) {
  Checkpoint checkpoint;
  checkpoint.model = weights_of(model);
  checkpoint.config_json = files.config_json;
  checkpoint.files = files.others;
  write_checkpoint(path, checkpoint);
}

void save_model(Communicator& comm, const torch::nn::Module& model, Strategy& strategy,
                const CheckpointFiles& files, const std::filesystem::path& path) {
  if (!strategy.divides_model() && !strategy.has_parts()) {
    const auto whole = strategy.as_saved();
    on_root(comm, [&] { save_model(model, files, path); });
    return;
  }
  if (strategy.has_parts()) strategy.share_buffers();
  Checkpoint checkpoint;
  checkpoint.model = {.tensors = strategy.gathered_parameters(), .metadata = {{"format", "pt"}}};
  if (strategy.has_parts() && comm.rank() == 0) {
    const NamedTensors others = others_of(model, strategy);
    checkpoint.model.tensors.insert(checkpoint.model.tensors.end(), others.begin(), others.end());
  }
  checkpoint.config_json = files.config_json;
  checkpoint.files = files.others;
  on_root(comm, [&] { write_checkpoint(path, checkpoint); });
}

void load_model(const Communicator& comm, torch::nn::Module& model, Strategy& strategy,
                const std::filesystem::path& path) {
  if (strategy.divides_model()) {
    strategy.load_divided_state(
        read_checkpoint(path, CheckpointParts::kModelAndConfig, ModelForm::kSlices), path.string(),
        CheckpointParts::kModelAndConfig);
    return;
  }
  load_parameters(comm, model, strategy,
                  read_checkpoint(path, CheckpointParts::kModelAndConfig, model_form(strategy)),
                  path.string());
}

Checkpoint share_of_run_state(Communicator& comm, const torch::nn::Module& model,
                              Strategy& strategy, torch::optim::Optimizer& optimizer,
                              const amp::GradScaler* scaler, const CheckpointFiles& files) {
  const at::Tensor generators = comm.gather(strategy.random_states(), 0);
  Checkpoint checkpoint;
  if (strategy.divides_model()) {
    checkpoint = strategy.divided_state();
  } else {
    checkpoint.optimizer = strategy.optimizer_state(optimizer);
    if (const auto names = parameter_names(model, optimizer))
      checkpoint.optimizer = by_name(std::move(checkpoint.optimizer), *names);
  }
  if (strategy.has_parts()) {
    checkpoint.model_slices = strategy.own_parameters();
    checkpoint.model.metadata = {{"format", "pt"}};
    if (comm.rank() == 0) checkpoint.model.tensors = others_of(model, strategy);
  } else if (!strategy.divides_model()) {
    checkpoint.model = weights_of(model);
    const bool divided =
        strategy.divides_state() && bytes_of(checkpoint.model.tensors) >= kDividedModelBytes;
    checkpoint.model =
        dealt(std::move(checkpoint.model), model, comm.rank(), divided ? comm.size() : 1);
  }
  if (comm.rank() != 0) return checkpoint;
  checkpoint.ranks.tensors = {{kGenerators, generators}};
  checkpoint.config_json = files.config_json;
  for (const auto& [name, text] : files.others) checkpoint.files[name] = text;
  if (scaler != nullptr) checkpoint.files[kScaler] = to_json(scaler->state());
  return checkpoint;
}

void restore_run_state(const Checkpoint& checkpoint, const std::string& source,
                       const Communicator& comm, torch::nn::Module& model, Strategy& strategy,
                       torch::optim::Optimizer& optimizer, amp::GradScaler* scaler) {
  const auto& generators = of_all_ranks(checkpoint.ranks, kGenerators, source);
  if (strategy.divides_model()) {
    strategy.load_divided_state(checkpoint, source, CheckpointParts::kAll);
  } else {
    load_parameters(comm, model, strategy, checkpoint, source);
    const std::string optimizer_source = source + "/optimizer.safetensors";
    SlicedTensors state = checkpoint.optimizer;
    if (const auto names = parameter_names(model, optimizer))
      state = by_position(std::move(state), *names, optimizer_source);
    strategy.load_optimizer_state(optimizer, state, optimizer_source);
  }
  if (scaler != nullptr) {
    const auto state = checkpoint.files.find(kScaler);
    if (state == checkpoint.files.end()) throw CheckpointError(source + ": has no " + kScaler);
    scaler->load_state(scaler_state_from_json(state->second, source + "/" + kScaler));
  }
  strategy.set_random_states(generators, source + "/ranks.safetensors");
}

}  // namespace lockstep
