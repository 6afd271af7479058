// What protection from deaths costs while no rank dies: steps of BERT-mini on several ranks with Recovery (DDP) and with
// RollbackRecovery (ZeRO, stage 3), and the same without, in alternating blocks. For each round the ratio of the two, and how
// much of a step it is.
//   build/release/bin/bench/recovery_overhead [--ranks 2] [--rounds 15] [--steps 20] [--every 10]
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/model/bert.h"
#include "lockstep/optim/adam.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/recover/recovery.h"
#include "lockstep/recover/rollback_recovery.h"

namespace {

using namespace lockstep;

struct Settings {
  int ranks = 2;
  int rounds = 15, steps = 20;
  int64_t every = 10;
  int64_t batch = 16, length = 64;
};

double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// `step(protected)` is one step.
void compare(Communicator& comm, const char* what, const Settings& settings,
             const std::function<void(bool)>& step) {
  const auto block = [&](bool guarded) {
    comm.barrier();
    return seconds([&] {
      for (int i = 0; i < settings.steps; ++i) step(guarded);
      comm.barrier();
    });
  };
  block(false), block(true);
  std::vector<double> ratios, plain;
  for (int round = 0; round < settings.rounds; ++round) {
    // The order changes from round to round.
    const bool first = round % 2 == 0;
    const double a = block(first), b = block(!first);
    ratios.push_back((first ? a : b) / (first ? b : a));
    plain.push_back(first ? b : a);
  }
  if (comm.rank() != 0) return;
  std::sort(ratios.begin(), ratios.end());
  std::sort(plain.begin(), plain.end());
  std::printf("%-48s %8.1f ms a step without, ratio %.4f (%.4f to %.4f)\n", what,
              1e3 * plain[plain.size() / 2] / settings.steps, ratios[ratios.size() / 2],
              ratios.front(), ratios.back());
  std::fflush(stdout);
}

void measure(const Settings& settings) {
  Communicator comm = init();
  torch::manual_seed(1);
  const auto make = [] {
    BertConfig config = bert_preset("mini");
    config.vocab_size = 21128;
    return BertClassifier(config);
  };
  torch::manual_seed(static_cast<uint64_t>(comm.rank()));
  const at::Tensor ids = torch::randint(21128, {settings.batch, settings.length}, at::kLong);
  const at::Tensor mask = torch::ones({settings.batch, settings.length}, at::kLong);
  const at::Tensor labels = torch::randint(2, {settings.batch}, at::kLong);
  const auto loss_of = [&](auto& model) {
    return torch::nn::functional::cross_entropy(model(ids, mask), labels);
  };
  const torch::optim::AdamWOptions adamw(1e-4);
  {
    BertClassifier net = make();
    optim::FusedAdamW optimizer(net->parameters(), adamw);
    Recovery run(comm, {.model = net.ptr(), .optimizer = &optimizer});
    DistributedDataParallel ddp(net, comm, {.init_sync = false});
    compare(comm, "DDP, Recovery", settings, [&](bool guarded) {
      optimizer.zero_grad();
      loss_of(ddp).backward();
      if (guarded)
        run.update([&] { optimizer.step(); });
      else
        optimizer.step();
    });
  }
  {
    BertClassifier net = make();
    ZeroOptimizer optimizer(comm, to_named_tensors(net->named_parameters()), adamw, {.stage = 3});
    RollbackRecovery run(comm, {.every = settings.every});
    const auto share = [&](const at::Tensor& memory) { return optimizer.share(memory); };
    run.begin(share);
    const auto mib = static_cast<double>(optimizer.share_bytes()) / (1 << 20);
    char what[80];
    std::snprintf(what, sizeof what, "ZeRO 3, RollbackRecovery every %lld (%.0f MiB)",
                  static_cast<long long>(settings.every), mib * 3);  // with the moments
    compare(comm, what, settings, [&](bool guarded) {
      loss_of(net).backward();
      optimizer.step();
      if (guarded) run.stepped(share);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The cost of protection from deaths.");
  Settings settings;
  app.add_option("--ranks", settings.ranks)->capture_default_str();
  app.add_option("--rounds", settings.rounds, "alternating blocks of each")->capture_default_str();
  app.add_option("--steps", settings.steps, "of a block")->capture_default_str();
  app.add_option("--every", settings.every, "steps between copies of shares")
      ->capture_default_str();
  app.add_option("--batch", settings.batch, "of a rank")->capture_default_str();
  app.add_option("--length", settings.length, "tokens of a text")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  launch::LaunchOptions options;
  options.threads_per_rank = 1;
  return launch::spawn(settings.ranks, [&] { measure(settings); }, options).exit_code;
}
