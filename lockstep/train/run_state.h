// What a run needs to go on bit for bit, as a checkpoint: model, optimizer, scaler and the ranks'
// generators.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/checkpoint_directory.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

class Strategy;

// What a checkpoint holds for those who use the model.
struct CheckpointFiles {
  std::string config_json = "{}\n";
  std::map<std::string, std::string> others = {};  // by name: "vocab.txt"
};

// A model alone, as a checkpoint directory: for eval, predict and transformers. One rank calls.
// Throws as write_checkpoint().
void save_model(const torch::nn::Module& model, const CheckpointFiles& files,
                const std::filesystem::path& path);

// The same of a model under a strategy: where that divides it, put together on rank 0, which takes
// the whole model's memory there. Rank 0 writes. Collective; throws on all ranks.
void save_model(Strategy& strategy, const CheckpointFiles& files,
                const std::filesystem::path& path);

// Puts a checkpoint's parameters into the model, on every rank, whatever divided it; the
// optimizer's state stays. Collective. Throws CheckpointError.
void load_model(Strategy& strategy, const std::filesystem::path& path);

// From this size on, ranks that divide the optimizer's state write a model's parameters in turns; a
// smaller one is rank 0's alone, and so one file.
inline constexpr int64_t kDividedModelBytes = int64_t{64} << 20;

// What this rank is to write (checkpoint_writer.h): views of the model's and the optimizer's own
// memory. The optimizer's state is by the names of the model's parameters
// (named_optimizer_state.h). `scaler` may be nullptr. Collective.
Checkpoint share_of_run_state(Strategy& strategy, torch::optim::Optimizer& optimizer,
                              const amp::GradScaler* scaler, const CheckpointFiles& files);

// How restore_run_state() wants the model to be read.
ModelForm model_form(const Strategy& strategy);

// Puts it back, on every rank, whatever the number of ranks that wrote it and the order of the
// optimizer's parameters; one by position, as older checkpoints have it, where that order is the
// same. Random streams go on as StrategyGradients::set_random_states() says. Collective. Throws
// CheckpointError that begins with `source`.
void restore_run_state(const Checkpoint& checkpoint, const std::string& source, Strategy& strategy,
                       torch::optim::Optimizer& optimizer, amp::GradScaler* scaler);

// The rows of the ranks that wrote it in ranks.safetensors, [ranks, ...]. Throws CheckpointError
// where there is no such tensor.
const at::Tensor& of_all_ranks(const Safetensors& file, const char* name,
                               const std::string& source);

}  // namespace lockstep
