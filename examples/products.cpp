// Ways of parallelism together: a language model cut along its depth and across its layers, batches along data, and
// ZeRO among those who average gradients: whatever of it the ranks suffice for. It learns to count, and rank 0 gathers
// the whole and goes on counting with it. Runs on 4 ranks of its own when started by hand.
#include <lockstep/model/sampling.h>
#include <lockstep/products/parallel_lm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <string>

#include "on_ranks.h"

namespace {

std::string mesh_for(int ranks) {
  const auto rows = [&](int each) { return "data=" + std::to_string(ranks / each); };
  if (ranks % 4 == 0) return rows(4) + ",pipe=2,tensor=2";
  return ranks % 2 == 0 ? rows(2) + ",tensor=2" : rows(1);
}

void count_on(const lockstep::LmConfig& config, const lockstep::NamedTensors& state) {
  lockstep::TransformerLm whole(config,
                                lockstep::LmOptions{.initial = lockstep::InitialParameters::kNone});
  auto parameters = whole->named_parameters();
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : state) parameters[name].copy_(value);
  }
  std::printf("10 11 12");
  for (const int64_t next : lockstep::generate(
           whole, {10, 11, 12}, {.max_new_tokens = 4, .sampling = {.temperature = 0}}))
    std::printf(" %lld", static_cast<long long>(next));
  std::printf("\n");
}

void example(lockstep::Communicator& comm) {
  lockstep::LmConfig config;
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 32;

  lockstep::Parallelism how = lockstep::parse_parallelism(mesh_for(comm.size()));
  how.zero = 1;
  torch::manual_seed(1);  // on all ranks: they draw parts of one model
  lockstep::ParallelLm model(config, comm, how);
  model.make_optimizer(torch::optim::AdamWOptions(1e-2));

  const int row = model.rows().rank();
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    // Ranks of one row read the same batch.
    torch::manual_seed(1000 * step + row);
    const at::Tensor numbers = torch::randint(0, 40, {16, 1}, at::kLong) + torch::arange(17);
    const at::Tensor ids = numbers.remainder(40);
    last = model.step({ids.narrow(1, 0, 16), ids.narrow(1, 1, 16)});
    model.update({.max_norm = 1.0});
    if (step == 0) first = last;
  }

  const lockstep::NamedTensors state = model.gather();
  if (comm.rank() != 0) return;
  std::printf("%s\nloss %.2f to %.3f\n", model.str().c_str(), first, last);
  count_on(config, state);
}

}  // namespace

int main() {
  return on_ranks(4, example);
}
