// What a run needs to go on bit for bit, as a checkpoint: model, optimizer, scaler and the ranks'
// generators.
#pragma once

#include <map>
#include <string>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/comm/communicator.h"

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

// What rank 0 is to write; elsewhere empty. `scaler` may be nullptr. Collective.
Checkpoint gather_run_state(Communicator& comm, const torch::nn::Module& model, Strategy& strategy,
                            torch::optim::Optimizer& optimizer, const amp::GradScaler* scaler,
                            const CheckpointFiles& files);

// Puts it back, on every rank. Throws CheckpointError that begins with `source`, also
// for a run of another number of ranks.
void restore_run_state(const Checkpoint& checkpoint, const std::string& source,
                       const Communicator& comm, torch::nn::Module& model, Strategy& strategy,
                       torch::optim::Optimizer& optimizer, amp::GradScaler* scaler);

// The row of each rank in ranks.safetensors, [ranks, ...]. Throws CheckpointError unless there is
// one a rank.
const at::Tensor& of_all_ranks(const Safetensors& file, const char* name, int ranks,
                               const std::string& source);

}  // namespace lockstep
