// What context parallelism gains on one host: a step (forward and backward) of a stack of layers on one long
// sequence, by one rank alone and by all of them, who divide its tokens.
//
//   lockstep run --nproc-per-node 2 build/release/bin/bench/context_parallel [TOKENS]
//
// In rounds, each of all of these, one line a quantity with median and range:
//   alone      seconds that rank 0 takes for the whole sequence, with a rank's threads, while the others wait
//   ring       seconds of all ranks by the ring; heads: by heads
//   gain       alone over ring, alone over heads
// Both ways' losses must be the one rank's.
#include <ATen/ops/arange.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/context/context_parallel_lm.h"

namespace lockstep::inline v0 {
namespace {

constexpr int kRounds = 5;

LmConfig stack(int64_t tokens) {
  LmConfig config;
  config.vocab_size = 256;  // the head is no part of what is measured
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.max_position_embeddings = tokens;
  return config;
}

class Bench {
 public:
  Bench(Communicator comm, int64_t tokens)
      : comm_(std::move(comm)),
        tokens_(tokens),
        ids_(at::arange(tokens, at::kLong).mul_(7).remainder_(251)) {
    torch::manual_seed(1);
    alone_ = TransformerLm(stack(tokens));
    ring_ = context_parallel_lm(alone_, comm_, {.way = ContextWay::kRing});
    heads_ = context_parallel_lm(alone_, comm_, {.way = ContextWay::kHeads});
  }

  void run() {
    std::vector<double> alone, ring, heads, by_ring, by_heads;
    for (int round = 0; round <= kRounds; ++round) {
      const double alone_s = longest([&] {
        if (comm_.rank() == 0) step(alone_);
        comm_.barrier();
      });
      const double ring_s = longest([&] { step(ring_); });
      const double heads_s = longest([&] { step(heads_); });
      if (round == 0) continue;  // memory is touched
      alone.push_back(alone_s);
      ring.push_back(ring_s);
      heads.push_back(heads_s);
      by_ring.push_back(alone_s / ring_s);
      by_heads.push_back(alone_s / heads_s);
    }
    if (comm_.rank() != 0) return;
    std::printf("%d ranks, %lld tokens, %d threads a rank\n", comm_.size(),
                static_cast<long long>(tokens_), at::get_num_threads());
    print("alone, s", alone);
    print("ring, s", ring);
    print("heads, s", heads);
    print("alone / ring", by_ring);
    print("alone / heads", by_heads);
  }

 private:
  void step(TransformerLm& lm) {
    lm->zero_grad();
    const at::Tensor loss = lm->loss(ids_, ids_.roll(-1, 0));
    loss.backward();
    const auto value = loss.item<double>();
    if (loss_ == 0) loss_ = value;
    if (!(std::abs(value - loss_) < 1e-3))
      throw Error("a loss of " + std::to_string(value) + ", not " + std::to_string(loss_));
  }
  // Of all ranks, from one start.
  double longest(const std::function<void()>& f) {
    comm_.barrier();
    const auto start = std::chrono::steady_clock::now();
    f();
    const at::Tensor spent = torch::full(
        {1}, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
        at::kDouble);
    comm_.all_reduce(spent, ReduceOp::kMax);
    return spent.item<double>();
  }
  static void print(const char* what, std::vector<double> values) {
    std::sort(values.begin(), values.end());
    std::printf("%-16s %8.3f  (%.3f to %.3f)\n", what, values[values.size() / 2], values.front(),
                values.back());
  }

  Communicator comm_;
  int64_t tokens_;
  at::Tensor ids_;
  TransformerLm alone_ = nullptr, ring_ = nullptr, heads_ = nullptr;
  double loss_ = 0;
};

}  // namespace
}  // namespace lockstep::inline v0

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 8192;
  if (argc > 2 || tokens < 1) {
    std::fputs("usage: lockstep run --nproc 2 context_parallel [TOKENS]\n", stderr);
    return 2;
  }
  try {
    lockstep::Bench(lockstep::init(), tokens).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "context_parallel: %s\n", error.what());
    return 1;
  }
  return 0;
}
