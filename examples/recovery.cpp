// Training that goes on when a rank dies (docs/recovery.md). Try it: a rank kills itself in the middle of a step, and the
// last line is the same as without.
//
//   lockstep run --on-failure replace --max-restarts 3 --nproc-per-node 3 recovery
//   lockstep run --on-failure replace --max-restarts 3 --nproc-per-node 3 recovery --kill-rank 1 --kill-step 20
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "dying_rank.h"
#include "number_checks.h"
#include "on_ranks.h"

namespace {

struct Settings {
  int64_t steps = 40;
  int nproc = 3;
  DyingRank dying;
  std::string times;
};

// Of all bytes of the parameters, FNV-1a: the same for the same bits.
uint64_t sum_of(const torch::nn::Module& model) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor here = parameter.cpu();
    const auto* bytes = static_cast<const unsigned char*>(here.const_data_ptr());
    for (size_t i = 0; i < here.nbytes(); ++i) sum = (sum ^ bytes[i]) * 0x100000001b3;
  }
  return sum;
}

// "rank step seconds", a line of the file of all ranks.
void note(const Settings& settings, int rank, int64_t step) {
  if (settings.times.empty()) return;
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  char line[80];
  std::snprintf(line, sizeof line, "%d %lld %.6f\n", rank, static_cast<long long>(step),
                now.count());
  std::ofstream(settings.times, std::ios::app) << line;
}

void die_if_told(const Settings& settings, int rank, int64_t step) {
  if (!settings.dying.is_to_die(rank, step)) return;
  note(settings, rank, -1);
  DyingRank::die();
}

void train(const Settings& settings) {
  // What stands before init() a spare has done when a rank needs it.
  lockstep::data::generate_digits("data/digits");  // the first process to come makes it
  const auto digits = lockstep::data::mnist("data/digits", {.load_test = false});

  torch::manual_seed(1234);
  lockstep::SimpleCnn model;
  lockstep::Communicator comm = lockstep::init();
  model->to(comm.device());
  torch::manual_seed(1234 + comm.rank());  // dropout differs from rank to rank
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  lockstep::Recovery run(comm, {.model = model.ptr(), .optimizer = &optimizer});

  while (run.step() < settings.steps) try {
      // What stands on the communicator is made again after a failure.
      lockstep::DistributedDataParallel ddp(model, run.comm(), {.init_sync = false});
      lockstep::data::DistributedSampler sampler(digits.train.size(), run.comm(),
                                                 {.shuffle = true, .seed = 1234});
      lockstep::data::Loader loader(digits.train, sampler,
                                    {.batch_size = 32, .device = comm.device()});
      while (run.step() < settings.steps) {
        sampler.set_epoch(run.step() / loader.batches());
        loader.skip(run.step() % loader.batches());
        for (auto& [image, label] : loader) {
          optimizer.zero_grad();
          torch::nll_loss(ddp(image), label).backward();
          die_if_told(settings, comm.rank(), run.step());
          run.update([&] { optimizer.step(); });
          note(settings, comm.rank(), run.step());
          if (run.step() == settings.steps) break;
        }
      }
    } catch (...) {
      run.recover();
    }
  run.finish();

  if (run.comm().rank() == 0)
    std::printf("%lld steps, parameters %016llx\n", static_cast<long long>(run.step()),
                static_cast<unsigned long long>(sum_of(*model)));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains through the death of a rank.");
  Settings settings;
  app.add_option("--steps", settings.steps, "updates in all")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--nproc", settings.nproc, "ranks to start when no launcher did")
      ->check(above_zero())
      ->capture_default_str();
  settings.dying.add_to(app);
  app.add_option("--times", settings.times,
                 "append to this file when each rank had done each step, and when one died");
  CLI11_PARSE(app, argc, argv);
  return as_ranks(settings.nproc, [&] { train(settings); });
}
