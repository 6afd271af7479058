// A checkpoint of a language model whose layers are divided among ranks, with the optimizer's state divided further by
// ZeRO along a data axis; and two ways to go on from it: layers divided among all ranks, and one process that has all.
// Runs on 4 ranks of its own when started by hand.
//   divided_checkpoint [DIRECTORY]
#include <lockstep/checkpoint/checkpoint_writer.h>
#include <lockstep/checkpoint/divided_state.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/optim/adam.h>
#include <lockstep/parallel/zero/zero_optimizer.h>
#include <lockstep/shard/tensor_parallel_lm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <filesystem>

#include "on_ranks.h"
#include "usage.h"

namespace {

namespace fs = std::filesystem;
using lockstep::parameters_of;

lockstep::LmConfig small() {
  lockstep::LmConfig config;
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 32;
  return config;
}

// It learns to count.
at::Tensor loss_of(lockstep::TransformerLm& lm, int64_t first) {
  const at::Tensor numbers = torch::arange(first, first + 16).unsqueeze(1) + torch::arange(17);
  const at::Tensor ids = numbers.remainder(40).to(lm->parameters()[0].device());
  return lm(ids.narrow(1, 0, 16), at::Tensor(), ids.narrow(1, 1, 16));
}

double step(lockstep::TransformerLm& lm, torch::optim::Optimizer& optimizer, int64_t first) {
  optimizer.zero_grad();
  const at::Tensor loss = loss_of(lm, first);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

// 20 steps on some ranks for the data x some for the layers, and what they write.
void train(lockstep::Communicator& comm, const fs::path& path) {
  const lockstep::Mesh mesh(comm, {{"data", 0}, {"tensor", comm.size() % 2 == 0 ? 2 : 1}});
  torch::manual_seed(1);
  lockstep::TransformerLm lm = lockstep::tensor_parallel_lm(small(), mesh["tensor"]);
  lm->to(comm.device());
  lockstep::ZeroOptimizer zero(mesh["data"], parameters_of(lm), torch::optim::AdamWOptions(1e-2));
  for (int i = 0; i < 20; ++i) step(lm, zero, i + 7 * mesh.place("data"));

  const lockstep::PlacedParameters places =
      lockstep::lm_tensor_parts(small(), mesh["tensor"]).places();
  const auto names = *lockstep::parameter_names(*lm, zero);
  lockstep::Checkpoint share;
  // Along this axis ranks have the same parameters, and each writes some.
  const auto own = lockstep::dealt(places, mesh.place("data"), mesh["data"].size());
  share.model_slices = lockstep::slices_of_parameters(parameters_of(lm), own);
  share.optimizer = lockstep::slices_of_state(zero.own_state(), names, places);
  lockstep::join_groups(comm, share.optimizer);
  share.config_json = to_json(small());
  lockstep::write_checkpoint(comm, path, share);
}

// The loss of the next step, of layers that all ranks share.
double go_on(lockstep::Communicator& comm, const fs::path& path) {
  const int parts = comm.size() % 4 == 0 ? 4 : comm.size() % 2 == 0 ? 2 : 1;
  const lockstep::Mesh mesh(comm, {{"data", 0}, {"tensor", parts}});
  lockstep::TransformerLm lm = lockstep::tensor_parallel_lm(small(), mesh["tensor"]);
  lm->to(comm.device());
  lockstep::optim::FusedAdamW adam(lm->parameters(), torch::optim::AdamWOptions(1e-2));

  const lockstep::PlacedParameters places =
      lockstep::lm_tensor_parts(small(), mesh["tensor"]).places();
  const lockstep::Checkpoint stored = lockstep::read_checkpoint(
      path, lockstep::CheckpointParts::kAll, lockstep::ModelForm::kSlices);
  lockstep::load_parameters(parameters_of(lm), places, stored.model_slices, path);
  const auto state = lockstep::part_of_state(stored.optimizer,
                                             *lockstep::parameter_names(*lm, adam), places, path);
  lockstep::set_optimizer_state(adam, state.whole(), path);
  step(lm, adam, 20);
  return step(lm, adam, 21);
}

// The same by one process, as from any other checkpoint.
double go_on_alone(const fs::path& path) {
  lockstep::TransformerLm lm(small());
  lockstep::optim::FusedAdamW adam(lm->parameters(), torch::optim::AdamWOptions(1e-2));
  const lockstep::Checkpoint stored = lockstep::read_checkpoint(path);
  lockstep::set_module_state(*lm, stored.model.tensors, path);
  const auto names = *lockstep::parameter_names(*lm, adam);
  const auto state = lockstep::by_position(stored.optimizer, names, path);
  lockstep::set_optimizer_state(adam, state.whole(), path);
  step(lm, adam, 20);
  return step(lm, adam, 21);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "divided_checkpoint [DIRECTORY]")) return *code;
  const fs::path path =
      argc > 1 ? argv[1] : fs::temp_directory_path() / "lockstep_divided_checkpoint";
  return on_ranks(4, [&path](lockstep::Communicator& comm) {
    train(comm, path);
    const double divided = go_on(comm, path);
    if (comm.rank() != 0) return;
    std::printf("loss %.5f on %d ranks, %.5f alone\n", divided, comm.size(), go_on_alone(path));
  });
}
