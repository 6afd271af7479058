// Training whose parameters and optimizer state are divided among the ranks (ZeRO, stage 3), and that goes on when a rank
// dies: a copy of every rank's share lies in another rank's memory (docs/recovery.md). A rank kills itself in the middle of a
// step, and the last line is the same as without.
//
//   lockstep run --on-failure replace --max-restarts 3 --nproc-per-node 3 recovery_divided
//   lockstep run --on-failure replace --max-restarts 3 --nproc-per-node 3 recovery_divided --kill-rank 1 --kill-step 20
#include <lockstep/lockstep.h>
#include <lockstep/parallel/zero/zero_optimizer.h>
#include <lockstep/recover/rollback_recovery.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>

#include "dying_rank.h"
#include "number_checks.h"
#include "on_ranks.h"

namespace {

struct Settings {
  int64_t steps = 40, every = 8;
  int nproc = 3;
  DyingRank dying;
};

torch::nn::Sequential make_net() {
  torch::manual_seed(1234);
  return torch::nn::Sequential(torch::nn::Linear(784, 64), torch::nn::ReLU(),
                               torch::nn::Linear(64, 10));
}

void train(lockstep::Communicator& comm, const Settings& settings) {
  lockstep::data::generate_digits("data/digits");  // the first rank to come makes it
  const auto digits = lockstep::data::mnist("data/digits", {.load_test = false});

  lockstep::RollbackRecovery run(comm, {.every = settings.every});
  while (true) try {
      // All of this is made again after a failure; the share puts back what training has made of it.
      auto net = make_net();
      lockstep::ZeroOptimizer optimizer(run.comm(),
                                        lockstep::to_named_tensors(net->named_parameters()),
                                        torch::optim::AdamWOptions(1e-3), {.stage = 3});
      if (run.state()) optimizer.restore_share(*run.state());
      lockstep::data::DistributedSampler sampler(digits.train.size(), run.comm(),
                                                 {.shuffle = true, .seed = 1234});
      lockstep::data::Loader loader(digits.train, sampler, {.batch_size = 32});
      const auto share = [&](const at::Tensor& memory) { return optimizer.share(memory); };
      run.begin(share);
      while (run.step() < settings.steps) {
        // Batches follow from the step: one that is repeated has the batch that it had.
        sampler.set_epoch(run.step() / loader.batches());
        loader.skip(run.step() % loader.batches());
        for (auto& [image, label] : loader) {
          torch::nn::functional::cross_entropy(net->forward(image.flatten(1)), label).backward();
          if (settings.dying.is_to_die(comm.rank(), run.step())) DyingRank::die();
          optimizer.step();
          run.stepped(share);
          if (run.step() == settings.steps) break;
        }
      }
      double sum = 0;
      for (const at::Tensor& parameter : net->parameters())
        sum += parameter.detach().to(at::kDouble).abs().sum().item<double>();
      run.finish();  // until all are here, a rank may need another one's share
      if (run.comm().rank() == 0)
        std::printf("%lld steps, sum of all parameters' magnitudes %.17g\n",
                    static_cast<long long>(run.step()), sum);
      return;
    } catch (...) {
      run.recover();
    }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a divided model through the death of a rank.");
  Settings settings;
  app.add_option("--steps", settings.steps, "updates in all")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--every", settings.every, "steps between two copies of the ranks' shares")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--nproc", settings.nproc, "ranks to start when no launcher did")
      ->check(above_zero())
      ->capture_default_str();
  settings.dying.add_to(app);
  CLI11_PARSE(app, argc, argv);
  return on_ranks(settings.nproc, [&](lockstep::Communicator& comm) { train(comm, settings); });
}
