// Parameters averaged now and then, instead of gradients at every step: each rank trains for
// itself, and every fourth step the ranks meet. Runs on 2 ranks of its own when started by hand.
#include <ATen/ops/mse_loss.h>
#include <lockstep/parallel/ddp/average_parameters.h>
#include <lockstep/parallel/horovod/broadcast.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>

#include "on_ranks.h"

namespace {

void example(lockstep::Communicator& comm) {
  torch::manual_seed(comm.rank());  // other data on every rank
  torch::nn::Linear model(10, 1);
  model->to(comm.device());
  lockstep::broadcast_parameters(model, comm);  // from the same parameters

  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));
  lockstep::PeriodicAverager averager(comm, /*period=*/4);
  double first = 0, last = 0;
  int meetings = 0;
  for (int step = 0; step < 40; ++step) {
    const auto x = torch::randn({20, 10}).to(comm.device());
    const auto loss = at::mse_loss(model(x), x.sum(1, true));
    optimizer.zero_grad();
    loss.backward();  // communicates nothing
    optimizer.step();
    if (averager.step(model)) ++meetings;
    (step == 0 ? first : last) = loss.item<double>();
  }
  const bool same = [&] {
    const auto all = comm.all_gather(model->weight.detach().unsqueeze(0));
    return all.eq(all[0]).all().item<bool>();
  }();
  std::printf("rank %d of %d: loss %.2f to %.2f, %d meetings, %s\n", comm.rank(), comm.size(),
              first, last, meetings, same ? "parameters equal on all ranks" : "PARAMETERS DIFFER");
}

}  // namespace

int main() {
  return on_ranks(2, example);
}
