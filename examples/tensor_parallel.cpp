// Tensor parallelism: a language model whose layers are divided among ranks, beside data parallelism where there are
// ranks for both. It learns to count, and the parts are put together to have the whole. Runs on 2 ranks of
// its own when started by hand.
#include <lockstep/mesh/mesh.h>
#include <lockstep/model/sampling.h>
#include <lockstep/optim/adam.h>
#include <lockstep/parallel/ddp/ddp.h>
#include <lockstep/shard/tensor_parallel_lm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>

#include "on_ranks.h"

namespace {

void example(lockstep::Communicator& comm) {
  const lockstep::Mesh mesh(comm, {{"data", 0}, {"tensor", comm.size() % 2 == 0 ? 2 : 1}});
  lockstep::LmConfig config;
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 32;

  torch::manual_seed(1);  // on all ranks: they draw parts of one model
  lockstep::TransformerLm part = lockstep::tensor_parallel_lm(config, mesh["tensor"]);
  part->to(comm.device());
  lockstep::TensorParts parts = lockstep::lm_tensor_parts(config, mesh["tensor"]);
  lockstep::DistributedDataParallel model(part, mesh["data"]);
  lockstep::optim::FusedAdamW optimizer(part->parameters(), torch::optim::AdamWOptions(1e-2));

  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    // The ranks of one row along "tensor" read the same batch.
    torch::manual_seed(1000 * step + mesh.place("data"));
    const at::Tensor numbers = torch::randint(0, 40, {16, 1}, at::kLong) + torch::arange(17);
    const at::Tensor ids = numbers.remainder(40).to(comm.device());
    optimizer.zero_grad();
    const at::Tensor loss = model(ids.narrow(1, 0, 16), at::Tensor(), ids.narrow(1, 1, 16));
    loss.backward();
    parts.clip_gradients(lockstep::parameters_of(part), 1.0);
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }

  const auto state = parts.gather(lockstep::parameters_of(part));
  if (comm.rank() != 0) return;
  lockstep::TransformerLm whole(config,
                                lockstep::LmOptions{.initial = lockstep::InitialParameters::kNone});
  auto parameters = whole->named_parameters();
  int64_t own = 0, all = 0;
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : state) parameters[name].copy_(value);
  }
  for (const at::Tensor& parameter : part->parameters()) own += parameter.numel();
  for (const at::Tensor& parameter : whole->parameters()) all += parameter.numel();
  std::printf("loss %.2f to %.2f on %d x %d ranks, of which one has %lld of %lld parameters\n",
              first, last, mesh["data"].size(), mesh["tensor"].size(), static_cast<long long>(own),
              static_cast<long long>(all));
  std::printf("10 11 12");
  for (const int64_t next : lockstep::generate(
           whole, {10, 11, 12}, {.max_new_tokens = 4, .sampling = {.temperature = 0}}))
    std::printf(" %lld", static_cast<long long>(next));
  std::printf("\n");
}

}  // namespace

int main() {
  return on_ranks(2, example);
}
