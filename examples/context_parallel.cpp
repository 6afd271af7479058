// Context parallelism: a language model of which each rank computes some tokens of every text, beside data parallelism
// where there are ranks for both. Texts begin with a name, and at their end the model is asked for it: it learns to look
// back over what the ranks have divided among them. Runs on 2 ranks of its own when started by hand; takes the way
// in which attention reaches the others' tokens, ring or heads.
#include <lockstep/mesh/mesh.h>
#include <lockstep/optim/adam.h>
#include <lockstep/parallel/context/context_layout.h>
#include <lockstep/parallel/context/context_parallel_lm.h>
#include <lockstep/parallel/ddp/ddp.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <string>

#include "on_ranks.h"
#include "usage.h"

namespace {

constexpr int64_t kTexts = 16, kTokens = 128, kWords = 40, kNames = 8;

// ids [kTexts, kTokens]: a name, then words. Targets: the name, from the middle of the text on.
std::pair<at::Tensor, at::Tensor> texts(int seed, at::Device device) {
  torch::manual_seed(seed);
  at::Tensor ids = torch::randint(0, kWords, {kTexts, kTokens}, at::kLong);
  const at::Tensor names = torch::randint(kWords, kWords + kNames, {kTexts, 1}, at::kLong);
  ids.narrow(1, 0, 1).copy_(names);
  at::Tensor targets = torch::full({kTexts, kTokens}, -100, at::kLong);
  targets.narrow(1, kTokens / 2, kTokens / 2).copy_(names.expand({kTexts, kTokens / 2}));
  return {ids.to(device), targets.to(device)};
}

void example(lockstep::Communicator& comm, lockstep::ContextWay way) {
  const lockstep::Mesh mesh(comm, {{"data", 0}, {"context", comm.size() % 2 == 0 ? 2 : 1}});
  lockstep::LmConfig config;
  config.vocab_size = kWords + kNames;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.max_position_embeddings = kTokens;

  torch::manual_seed(1);
  lockstep::TransformerLm lm = lockstep::context_parallel_lm(config, mesh["context"], {.way = way});
  lm->to(comm.device());
  lockstep::DistributedDataParallel model(lm, mesh.over({"data", "context"}));
  lockstep::optim::FusedAdamW optimizer(lm->parameters(), torch::optim::AdamWOptions(5e-3));

  double first = 0, last = 0;
  for (int step = 0; step < 160; ++step) {
    // The ranks of one row along "context" are given the same batch, and take their tokens of it.
    const auto [ids, targets] = texts(1000 * step + mesh.place("data"), comm.device());
    optimizer.zero_grad();
    const at::Tensor loss = model(ids, at::Tensor(), targets);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();  // the whole batch's, on each of these ranks
    if (step == 0) first = last;
  }

  lm->eval();
  const auto [ids, targets] = texts(-1, comm.device());
  const at::Tensor logits = lm(ids);  // of all tokens, on all ranks
  const auto found =
      logits.select(1, kTokens - 1).argmax(1).eq(ids.select(1, 0)).sum().item<int64_t>();
  if (comm.rank() != 0) return;
  const auto& context = mesh["context"];
  std::printf(
      "loss %.2f to %.2f on %d x %d ranks, of which one has %lld of %lld tokens\n", first, last,
      mesh["data"].size(), context.size(),
      static_cast<long long>(lockstep::context_count(kTokens, context.rank(), context.size())),
      static_cast<long long>(kTokens));
  std::printf("%lld of %lld names are found\n", static_cast<long long>(found),
              static_cast<long long>(kTexts));
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "context_parallel [ring|heads]")) return *code;
  const std::string way = argc > 1 ? argv[1] : "ring";
  if (way != "ring" && way != "heads") {
    std::fputs("usage: context_parallel [ring|heads]\n", stderr);
    return 2;
  }
  return on_ranks(2, [&](lockstep::Communicator& comm) {
    example(comm, way == "ring" ? lockstep::ContextWay::kRing : lockstep::ContextWay::kHeads);
  });
}
