// One step of DistributedDataParallel on a linear layer: each rank has its own data, and after the
// step all have the same parameters. Runs on 2 ranks of its own when started by hand.
#include <lockstep/parallel/ddp/ddp.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>

#include "on_ranks.h"

namespace {

void example(lockstep::Communicator& comm) {
  torch::manual_seed(comm.rank());  // other data on every rank
  torch::nn::Linear linear(10, 10);
  linear->to(comm.device());
  lockstep::DistributedDataParallel model(linear, comm);  // starts from rank 0's parameters

  torch::nn::MSELoss loss_fn;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.001));

  const auto outputs = model(torch::randn({20, 10}).to(comm.device()));
  const auto labels = torch::randn({20, 10}).to(comm.device());
  const auto loss = loss_fn(outputs, labels);
  loss.backward();  // averages the gradients
  optimizer.step();

  const auto everybodys = comm.all_gather(linear->weight.detach().unsqueeze(0));
  const bool same = everybodys.eq(everybodys[0]).all().item<bool>();
  std::printf("rank %d of %d: loss %.4f, %s\n", comm.rank(), comm.size(), loss.item<double>(),
              same ? "parameters equal on all ranks" : "PARAMETERS DIFFER");
}

}  // namespace

int main() {
  return on_ranks(2, example);
}
