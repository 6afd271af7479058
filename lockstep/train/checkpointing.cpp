#include "lockstep/train/checkpointing.h"

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <utility>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/on_root.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

constexpr const char* kGenerators = "cpu_generator";  // uint8 [ranks, bytes]
constexpr const char* kSums =
    "running_loss";  // float64 [ranks, 4]: since_log and of_epoch, loss and samples each

at::Tensor pack_sums(Trainer& trainer) {
  at::Tensor sums = at::empty({1, 4}, at::kDouble);
  double* values = sums.mutable_data_ptr<double>();
  values[0] = trainer.since_log().loss;
  values[1] = trainer.since_log().samples;
  values[2] = trainer.of_epoch().loss;
  values[3] = trainer.of_epoch().samples;
  return sums;
}

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

}  // namespace

void save_training(const TrainingRun& run, const std::filesystem::path& path,
                   const std::string& config_json) {
  const at::Device device = run.comm.device();
  const at::Tensor generators = run.comm.gather(cpu_rng_state().unsqueeze(0).to(device), 0);
  const at::Tensor sums = run.comm.gather(pack_sums(run.trainer).to(device), 0);
  on_root(run.comm, [&] {
    Checkpoint checkpoint;
    checkpoint.model.tensors = module_state(run.model);
    checkpoint.model.metadata = {{"format", "pt"}};
    checkpoint.optimizer = optimizer_state(run.optimizer);
    checkpoint.ranks.tensors = {{kGenerators, generators.cpu()}, {kSums, sums.cpu()}};
    checkpoint.trainer_json = to_json(run.trainer.state());
    checkpoint.config_json = config_json;
    write_checkpoint(path, checkpoint);
  });
}

void restore_training(const TrainingRun& run, const std::filesystem::path& path) {
  const Checkpoint checkpoint = read_checkpoint(path);
  const std::string source = path.string();
  const auto state = trainer_state_from_json(checkpoint.trainer_json, source + "/trainer.json");
  const auto& generators = of_all_ranks(checkpoint.ranks, kGenerators, run.comm.size(), source);
  const auto& sums = of_all_ranks(checkpoint.ranks, kSums, run.comm.size(), source);
  if (sums.size(1) != 4 || sums.scalar_type() != at::kDouble)
    throw CheckpointError(source + ": " + kSums + " is damaged");
  set_module_state(run.model, checkpoint.model.tensors, source + "/model.safetensors");
  set_optimizer_state(run.optimizer, checkpoint.optimizer, source + "/optimizer.safetensors");
  set_cpu_rng_state(generators[run.comm.rank()].contiguous(), source + "/ranks.safetensors");
  const double* mine = sums.const_data_ptr<double>() + 4 * run.comm.rank();
  run.trainer.since_log() = {mine[0], mine[1]};
  run.trainer.of_epoch() = {mine[2], mine[3]};
  run.trainer.state() = state;
}

CheckpointCallback::CheckpointCallback(TrainingRun run, RunFolder folder, std::string config_json)
    : run_(run), folder_(std::move(folder)), config_json_(std::move(config_json)) {}

void CheckpointCallback::on_save(TrainerState&, bool best) {
  // The best first: were the writer killed between the two, a run resumed from the last would find
  // the best anew.
  if (best) save_training(run_, folder_.best(), config_json_);
  save_training(run_, folder_.last(), config_json_);
}

}  // namespace lockstep
