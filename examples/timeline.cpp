// A timeline of a loop of one's own: steps 3 to 5 of DistributedDataParallel on a small network, as
// trace.json for ui.perfetto.dev. Runs on 2 ranks of its own when started by hand.
#include <lockstep/parallel/ddp/ddp.h>
#include <lockstep/timeline/timeline.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>

#include "on_ranks.h"

namespace {

void example(lockstep::Communicator& comm) {
  torch::manual_seed(comm.rank());
  torch::nn::Sequential net(torch::nn::Linear(512, 512), torch::nn::ReLU(),
                            torch::nn::Linear(512, 512), torch::nn::ReLU(),
                            torch::nn::Linear(512, 1));
  net->to(comm.device());
  lockstep::DistributedDataParallel model(net, comm);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));

  lockstep::Timeline timeline;
  for (int step = 1; step <= 6; ++step) {
    if (step == 3) timeline.start(comm);
    if (step == 6) timeline.write(comm, "trace.json", "3:5");  // on rank 0, of all ranks
    const auto whole = timeline.span("step", step);
    at::Tensor loss;
    {
      const auto span = timeline.span("forward");
      loss = model(torch::randn({64, 512}).to(comm.device())).pow(2).mean();
    }
    {
      const auto span = timeline.span("backward");
      loss.backward();
    }
    {
      const auto span = timeline.span("optimizer");
      optimizer.step();
      optimizer.zero_grad();
    }
    timeline.collect();
  }
  if (comm.rank() == 0) std::printf("wrote trace.json of %d ranks\n", comm.size());
}

}  // namespace

int main() {
  return on_ranks(2, example);
}
