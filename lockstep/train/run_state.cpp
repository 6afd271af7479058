#include "lockstep/train/run_state.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <utility>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/checkpoint/scaler_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kGenerators = "cpu_generator";  // uint8 [ranks, bytes]
constexpr const char* kScaler = "scaler.json";

}  // namespace

ModelForm model_form(const Strategy& strategy) {
  return strategy.traits().saves_slices() ? ModelForm::kSlices : ModelForm::kWhole;
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
  checkpoint.model = {.tensors = module_state(model), .metadata = {{"format", "pt"}}};
  checkpoint.config_json = files.config_json;
  checkpoint.files = files.others;
  write_checkpoint(path, checkpoint);
}

void save_model(Strategy& strategy, const CheckpointFiles& files,
                const std::filesystem::path& path) {
  const auto whole = strategy.traits().divides_model ? nullptr : strategy.placement().as_saved();
  Checkpoint checkpoint;
  checkpoint.model = {.tensors = strategy.state().gathered_parameters(),
                      .metadata = {{"format", "pt"}}};
  checkpoint.config_json = files.config_json;
  checkpoint.files = files.others;
  on_root(strategy.comm(), [&] { write_checkpoint(path, checkpoint); });
}

void load_model(Strategy& strategy, const std::filesystem::path& path) {
  strategy.state().load(
      nullptr, read_checkpoint(path, CheckpointParts::kModelAndConfig, model_form(strategy)),
      path.string(), CheckpointParts::kModelAndConfig);
}

Checkpoint share_of_run_state(Strategy& strategy, torch::optim::Optimizer& optimizer,
                              const amp::GradScaler* scaler, const CheckpointFiles& files) {
  Communicator& comm = strategy.comm();
  const at::Tensor generators = comm.gather(strategy.gradients().random_states(), 0);
  Checkpoint checkpoint = strategy.state().share(optimizer);
  if (comm.rank() != 0) return checkpoint;
  checkpoint.ranks.tensors = {{kGenerators, generators}};
  checkpoint.config_json = files.config_json;
  for (const auto& [name, text] : files.others) checkpoint.files[name] = text;
  if (scaler != nullptr) checkpoint.files[kScaler] = to_json(scaler->state());
  return checkpoint;
}

void restore_run_state(const Checkpoint& checkpoint, const std::string& source, Strategy& strategy,
                       torch::optim::Optimizer& optimizer, amp::GradScaler* scaler) {
  const auto& generators = of_all_ranks(checkpoint.ranks, kGenerators, source);
  strategy.state().load(&optimizer, checkpoint, source, CheckpointParts::kAll);
  if (scaler != nullptr) {
    const auto state = checkpoint.files.find(kScaler);
    if (state == checkpoint.files.end()) throw CheckpointError(source + ": has no " + kScaler);
    scaler->load_state(scaler_state_from_json(state->second, source + "/" + kScaler));
  }
  strategy.gradients().set_random_states(generators, source + "/ranks.safetensors");
}

}  // namespace lockstep::inline v0
