// Mixed precision under DistributedDataParallel: forward and backward in 16 bits, parameters,
// gradients and their averages in float32. Runs on 2 ranks of its own when started by hand.
#include <lockstep/amp/autocast.h>
#include <lockstep/amp/grad_scaler.h>
#include <lockstep/parallel/ddp/ddp.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>

#include "on_ranks.h"

namespace {

void train(lockstep::Communicator& comm, at::ScalarType dtype) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 4));
  net->to(comm.device());
  lockstep::DistributedDataParallel model(net, comm);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));

  torch::manual_seed(comm.rank());  // other data on every rank
  const auto x = torch::randn({64, 16}).to(comm.device());
  const auto y = x.narrow(1, 0, 4).argmax(1);

  // float16 gradients vanish below 6e-8 unless the loss is scaled; bfloat16 has float32's range.
  lockstep::amp::GradScaler scaler(comm, {.enabled = dtype == at::kHalf});
  double first = 0, last = 0;
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const lockstep::amp::Autocast autocast(comm.device().type(), dtype);
      loss = torch::nn::functional::cross_entropy(model(x), y);
    }
    scaler.scale(loss).backward();  // outside of the guard
    scaler.step(optimizer);         // unless a gradient of any rank overflowed
    scaler.update();
    (step == 0 ? first : last) = loss.item<double>();
  }
  std::printf("rank %d of %d: %s, loss %.2f to %.2f, scale %g\n", comm.rank(), comm.size(),
              lockstep::dtype_name(dtype), first, last, scaler.current_scale());
}

void example(lockstep::Communicator& comm) {
  train(comm, at::kBFloat16);
  train(comm, at::kHalf);
}

}  // namespace

int main() {
  return on_ranks(2, example);
}
