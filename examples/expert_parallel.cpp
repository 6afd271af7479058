// Expert parallelism: a language model in whose layers a router sends each token to two of eight experts, which are
// divided among ranks, beside data parallelism where there are ranks for both. It learns to count, and is put together
// to have the whole. Runs on 2 ranks of its own when started by hand.
#include <lockstep/mesh/mesh.h>
#include <lockstep/model/sampling.h>
#include <lockstep/optim/adam.h>
#include <lockstep/parallel/ddp/reducer.h>
#include <lockstep/parallel/expert/expert_parallel_lm.h>
#include <lockstep/parallel/tensor/tensor_parts.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>

#include "on_ranks.h"

namespace {

void example(lockstep::Communicator& comm) {
  const lockstep::Mesh mesh(comm, {{"data", 0}, {"expert", comm.size() % 2 == 0 ? 2 : 1}});
  lockstep::LmConfig config;
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.intermediate_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 32;
  config.num_local_experts = 8;
  config.num_experts_per_tok = 2;
  config.router_aux_loss_coef = 0.01;

  torch::manual_seed(1);  // on all ranks: they draw parts of one model
  lockstep::Communicator& tokens = mesh.over({"data", "expert"});
  lockstep::TransformerLm part = lockstep::expert_parallel_lm(config, mesh["expert"], tokens);
  part->to(comm.device());
  lockstep::TensorParts parts = lockstep::lm_expert_parts(config, mesh["expert"]);
  const auto by = lockstep::split_gradients(lockstep::parameters_of(part));
  lockstep::Reducer of_experts(by.experts, mesh["data"]), of_others(by.others, tokens);
  lockstep::optim::FusedAdamW optimizer(part->parameters(), torch::optim::AdamWOptions(1e-2));

  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    torch::manual_seed(1000 * step + comm.rank());  // each rank has sequences of its own
    const at::Tensor numbers = torch::randint(0, 40, {8, 1}, at::kLong) + torch::arange(17);
    const at::Tensor ids = numbers.remainder(40).to(comm.device());
    optimizer.zero_grad();
    of_experts.before_forward();
    of_others.before_forward();
    const at::Tensor loss = part->forward(ids.narrow(1, 0, 16), at::Tensor(), ids.narrow(1, 1, 16));
    loss.backward();
    parts.clip_gradients(lockstep::parameters_of(part), 1.0);
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }

  const auto router = part->routers().front();
  const auto busiest = std::max_element(router.choices.begin(), router.choices.end());
  int64_t choices = 0;
  for (const int64_t count : router.choices) choices += count;
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
              first, last, mesh["data"].size(), mesh["expert"].size(), static_cast<long long>(own),
              static_cast<long long>(all));
  std::printf("the busiest expert of layer 0 has %.0f %% of the choices\n",
              100.0 * static_cast<double>(*busiest) / static_cast<double>(choices));
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
