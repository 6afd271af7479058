// Model parallelism: the first layers on one device, the others on another; alone, and with data
// parallelism around it, where every rank has two devices of its own. Without GPUs enough, both
// halves are on the CPU, and the program says so. Runs on 2 ranks of its own when started by hand.
#include <lockstep/parallel/ddp/ddp.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>

#include "on_ranks.h"

namespace {

struct SplitModelImpl : torch::nn::Module {
  SplitModelImpl(torch::Device front, torch::Device back) : front_device(front), back_device(back) {
    net1 = register_module("net1", torch::nn::Linear(10, 10));
    net2 = register_module("net2", torch::nn::Linear(10, 5));
    net1->to(front_device);
    net2->to(back_device);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = torch::relu(net1(x.to(front_device)));
    return net2(hidden.to(back_device));  // autograd brings the gradient back
  }
  torch::Device front_device, back_device;
  torch::nn::Linear net1{nullptr}, net2{nullptr};
};
TORCH_MODULE(SplitModel);

template <typename Model>
void train(Model& model, const torch::Tensor& x, const torch::Tensor& y) {
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const auto output = model(x);
    torch::nn::functional::mse_loss(output, y.to(output.device())).backward();
    optimizer.step();
  }
}

void example(lockstep::Communicator& comm) {
  const int gpus = static_cast<int>(torch::cuda::device_count());
  const int first = 2 * comm.local_rank();
  const bool enough = gpus >= 2 * comm.local_size();
  const auto place = [&](int i) {
    return enough ? torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(i))
                  : torch::Device(torch::kCPU);
  };

  torch::manual_seed(0);  // the same model and data on every rank
  SplitModel alone(place(first), place(first + 1));
  torch::manual_seed(0);
  SplitModel parted(place(first), place(first + 1));
  const auto x = torch::randn({12, 10}), y = torch::randn({12, 5});

  train(alone, x, y);  // the whole batch
  lockstep::DistributedDataParallel model(parted, comm);
  train(model, x.chunk(comm.size())[comm.rank()], y.chunk(comm.size())[comm.rank()]);

  double difference = 0;
  for (const auto& item : alone->named_parameters()) {
    const auto other = parted->named_parameters()[item.key()];
    difference = std::max(difference, (item.value() - other).abs().max().item<double>());
  }
  std::printf("rank %d of %d: net1 on %s, net2 on %s%s; alone and under DDP %s\n", comm.rank(),
              comm.size(), alone->front_device.str().c_str(), alone->back_device.str().c_str(),
              enough ? "" : " (too few GPUs)",
              difference < 1e-5 ? "the same parameters" : "THE PARAMETERS DIFFER");
}

}  // namespace

int main() {
  return on_ranks(2, example);
}
