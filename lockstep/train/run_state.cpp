#include "lockstep/train/run_state.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/checkpoint/scaler_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/train/strategy.h"

namespace lockstep {
namespace {

constexpr const char* kGenerators = "cpu_generator";  // uint8 [ranks, bytes]
constexpr const char* kScaler = "scaler.json";

Safetensors weights_of(const torch::nn::Module& model) {
  return {.tensors = module_state(model), .metadata = {{"format", "pt"}}};
}

}  // namespace

const at::Tensor& of_all_ranks(const Safetensors& file, const char* name, int ranks,
                               const std::string& source) {
  const at::Tensor* tensor = file.find(name);
  if (tensor == nullptr || tensor->dim() != 2) throw CheckpointError(source + ": has no " + name);
  if (tensor->size(0) != ranks) {
    throw CheckpointError(source + ": was made by " + std::to_string(tensor->size(0)) +
                          " ranks, and there are " + std::to_string(ranks) +
                          "; resume with as many");
  }
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

Checkpoint gather_run_state(Communicator& comm, const torch::nn::Module& model, Strategy& strategy,
                            torch::optim::Optimizer& optimizer, const amp::GradScaler* scaler,
                            const CheckpointFiles& files) {
  const at::Tensor generators = comm.gather(cpu_rng_state().unsqueeze(0), 0);
  Checkpoint checkpoint;
  checkpoint.optimizer = strategy.optimizer_state(optimizer);
  if (comm.rank() != 0) return checkpoint;
  checkpoint.model = weights_of(model);
  checkpoint.ranks.tensors = {{kGenerators, generators}};
  checkpoint.config_json = files.config_json;
  checkpoint.files = files.others;
  if (scaler != nullptr) checkpoint.files[kScaler] = to_json(scaler->state());
  return checkpoint;
}

void restore_run_state(const Checkpoint& checkpoint, const std::string& source,
                       const Communicator& comm, torch::nn::Module& model, Strategy& strategy,
                       torch::optim::Optimizer& optimizer, amp::GradScaler* scaler) {
  const auto& generators = of_all_ranks(checkpoint.ranks, kGenerators, comm.size(), source);
  // Another rank may still compute with the parameters, which may be one memory.
  Communicator(comm).barrier();
  set_module_state(model, checkpoint.model.tensors, source + "/model.safetensors");
  strategy.load_optimizer_state(optimizer, checkpoint.optimizer, source + "/optimizer.safetensors");
  if (scaler != nullptr) {
    const auto state = checkpoint.files.find(kScaler);
    if (state == checkpoint.files.end()) throw CheckpointError(source + ": has no " + kScaler);
    scaler->load_state(scaler_state_from_json(state->second, source + "/" + kScaler));
  }
  set_cpu_rng_state(generators[comm.rank()].contiguous(), source + "/ranks.safetensors");
}

}  // namespace lockstep
