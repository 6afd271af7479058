// Ranks with unequal numbers of batches of unequal sizes: the result is that of one process. Runs
// on 2 ranks of its own when started by hand.
#include <lockstep/parallel/ddp/ddp.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>

#include "on_ranks.h"

namespace {

// 10 samples on rank 0, 7 on rank 1, and so on, in batches of 4.
void train(lockstep::Communicator& comm) {
  torch::manual_seed(1);
  torch::nn::Linear net(1, 1);
  net->to(comm.device());
  lockstep::DistributedDataParallel model(net, comm, {.divide_by = lockstep::DivideBy::kSamples});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));

  const int64_t samples = std::max(1, 10 - 3 * comm.rank());
  const auto x = torch::linspace(-1, 1 + comm.rank(), samples, comm.device()).view({samples, 1});
  const auto y = x * 2 + 1;
  int batches = 0;
  for (int epoch = 0; epoch < 40; ++epoch) {
    auto join = model.join();
    for (int64_t i = 0; i < samples; i += 4) {
      optimizer.zero_grad();
      const auto rows = x.slice(0, i, i + 4);  // the last one is shorter
      (model(rows) - y.slice(0, i, i + 4)).pow(2).mean().backward();
      optimizer.step();
      ++batches;
    }
    join.finish([&] { optimizer.step(); });  // along with ranks that have more batches
  }
  std::printf("rank %d: %d batches, weight %.3f, bias %.3f\n", comm.rank(), batches,
              net->weight.item<float>(), net->bias.item<float>());
}

}  // namespace

int main() {
  return on_ranks(2, train);
}
