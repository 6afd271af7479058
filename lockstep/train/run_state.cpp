#include "lockstep/train/run_state.h"

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
  if (!strategy.divides_model()) {
    const auto whole = strategy.as_saved();
    on_root(comm, [&] { save_model(model, files, path); });
    return;
  }
  Checkpoint checkpoint;
  checkpoint.model = {.tensors = strategy.gathered_parameters(), .metadata = {{"format", "pt"}}};
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
  const Checkpoint checkpoint = read_checkpoint(path, CheckpointParts::kModelAndConfig);
  const auto whole = strategy.whole_parameters();
  // Another rank may still compute with the parameters, which may be one memory.
  Communicator(comm).barrier();
  set_module_state(model, checkpoint.model.tensors, (path / "model.safetensors").string());
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
    // Another rank may still compute with the parameters, which may be one memory.
    Communicator(comm).barrier();
    set_module_state(model, checkpoint.model.tensors, source + "/model.safetensors");
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
