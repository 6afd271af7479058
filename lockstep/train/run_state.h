// The state that a resumed run needs to continue bit for bit, as a checkpoint: model, optimizer,
// scaler and the ranks' generators.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/export.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0 {

class Strategy;

// The files of a checkpoint for programs that use the model.
struct CheckpointFiles {
  std::string config_json = "{}\n";
  std::map<std::string, std::string> others = {};  // by name: "vocab.txt"
};

// Saves only a model, as a checkpoint directory for eval, predict and transformers. One rank calls
// it.
// Throws: as write_checkpoint().
LOCKSTEP_API void save_model(const torch::nn::Module& model, const CheckpointFiles& files,
                             const std::filesystem::path& path);

// The same for a model under a strategy. A divided model is gathered on rank 0, which needs memory
// for all of it. Rank 0 writes.
// Collective: all ranks.
// Throws: on all ranks.
LOCKSTEP_API void save_model(Strategy& strategy, const CheckpointFiles& files,
                             const std::filesystem::path& path);

// Puts a checkpoint's parameters into the model on every rank, also into a divided model. The
// optimizer's state is unchanged.
// Collective: all ranks.
// Throws: CheckpointError.
LOCKSTEP_API void load_model(Strategy& strategy, const std::filesystem::path& path);

// From this size on, ranks that divide the optimizer's state also divide the writing of the model's
// parameters. Rank 0 writes a smaller model, as one file.
inline constexpr int64_t kDividedModelBytes = int64_t{64} << 20;

// Returns this rank's part of a checkpoint (checkpoint_writer.h): views of the model's and the
// optimizer's own memory. The optimizer's state has the names of the model's parameters
// (named_optimizer_state.h). `scaler` may be nullptr.
// Collective: all ranks.
LOCKSTEP_API Checkpoint share_of_run_state(Strategy& strategy, torch::optim::Optimizer& optimizer,
                                           const amp::GradScaler* scaler,
                                           const CheckpointFiles& files);

// The form in which restore_run_state() takes the model.
LOCKSTEP_API ModelForm model_form(const Strategy& strategy);

// Restores the state on every rank, for any number of ranks that wrote it and any order of the
// optimizer's parameters. Older checkpoints have the state by position, and need the same order.
// Random streams continue as StrategyGradients::set_random_states() says.
// Collective: all ranks.
// Throws: CheckpointError that begins with `source`.
LOCKSTEP_API void restore_run_state(const Checkpoint& checkpoint, const std::string& source,
                                    Strategy& strategy, torch::optim::Optimizer& optimizer,
                                    amp::GradScaler* scaler);

// A tensor of ranks.safetensors with a row for each rank that wrote it: [ranks, ...].
// Throws: CheckpointError if there is no such tensor.
LOCKSTEP_API const at::Tensor& of_all_ranks(const Safetensors& file, const char* name,
                                            const std::string& source);

}  // namespace lockstep::inline v0
