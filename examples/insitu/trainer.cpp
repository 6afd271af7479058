// A trainer that learns from a running simulation (docs/in-situ.md): see simulation.cpp. It may
// come before or after the simulation, be killed, and be started again.
#include <lockstep/insitu/tensors.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

namespace insitu = lockstep::insitu;
using lockstep::Deadline;

int main(int argc, char** argv) {
  std::string name = "advection";
  int batch_size = 16;
  int max_batches = 0;
  double seconds = 30;
  CLI::App app("learns sixteen steps of a simulation at once");
  app.add_option("--ring", name, "the simulation's ring");
  app.add_option("--batch-size", batch_size, "samples of a rank in a step");
  app.add_option("--max-batches", max_batches, "end after so many; 0: when the simulation ends");
  app.add_option("--seconds", seconds, "wait so long for a simulation, and for each batch");
  CLI11_PARSE(app, argc, argv);

  auto comm = lockstep::init();
  // Each sample goes to one rank.
  auto ring = insitu::Consumer::open(name, Deadline::seconds(seconds));
  const int64_t points = ring.schema()[0].shape[0];
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(points, 128), torch::nn::Tanh(),
                            torch::nn::Linear(128, points));
  net->to(comm.device());
  lockstep::DistributedDataParallel model(net, comm);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(2e-3));

  double first = 0, last = 0;
  int batches = 0;
  while (max_batches == 0 || batches < max_batches) {
    const auto sample = insitu::take_tensors(ring, batch_size, Deadline::seconds(seconds));
    // The ranks make the same number of steps: those for which each of them has samples.
    const auto least = torch::tensor(sample[0].size(0), torch::kLong);
    comm.all_reduce(least, lockstep::ReduceOp::kMin);
    if (least.item<int64_t>() == 0) break;
    const auto before = sample[0].to(comm.device()), after = sample[1].to(comm.device());
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model(before), after);
    loss.backward();
    optimizer.step();
    // Of the last batches; one of them alone says little.
    last = batches == 0 ? loss.item<double>() : 0.9 * last + 0.1 * loss.item<double>();
    if (batches == 0) first = last;
    if (batches == 0) std::printf("trainer: rank %d has its first batch\n", comm.rank());
    std::fflush(stdout);
    ++batches;
  }
  if (comm.rank() == 0)
    std::printf("trainer: %d batches, loss %.4f at first, %.4f at last\n", batches, first, last);
}
