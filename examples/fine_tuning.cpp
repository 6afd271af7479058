// A ResNet-18 whose body is frozen and whose head is new, trained on 2 ranks of its own when started
// by hand: children of a model are frozen, replaced and wrapped from outside.
#include <lockstep/hooks/forward_hook.h>
#include <lockstep/model/resnet.h>
#include <lockstep/parallel/ddp/ddp.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>

#include "on_ranks.h"

namespace {

void train(lockstep::Communicator& comm) {
  torch::manual_seed(1);
  lockstep::ResNet net(lockstep::ResNetOptions{.stem = lockstep::ResNetStem::kCifar});
  // A head for 3 classes in place of ImageNet's 1000; nothing else is trained.
  for (const char* part : {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"})
    lockstep::freeze_child(*net, part);
  lockstep::replace_child(*net, "fc", torch::nn::Linear(512, 3), {.release_memory = true});
  // A look at what comes out of a layer.
  double largest = 0;
  lockstep::HookHandle handle = lockstep::wrap_forward(
      *net, "layer4", [&](const lockstep::Forward& forward, const at::Tensor& input) {
        const at::Tensor output = forward(input);
        largest = std::max(largest, output.detach().max().item<double>());
        return output;
      });

  net->to(comm.device());
  lockstep::DistributedDataParallel model(net, comm);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.02));
  const auto images = torch::randn({6, 3, 16, 16}).to(comm.device());
  const auto labels = torch::arange(6, comm.device()).remainder(3);
  double first = 0, last = 0;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(model(images), labels);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  handle.remove();

  int64_t trained = 0, all = 0;
  for (const auto& parameter : model->parameters()) {
    all += parameter.numel();
    if (parameter.requires_grad()) trained += parameter.numel();
  }
  if (comm.rank() == 0) {
    std::printf("trained %lld of %lld parameters, loss %.2f to %.2f, layer4 up to %.1f\n",
                static_cast<long long>(trained), static_cast<long long>(all), first, last, largest);
  }
}

}  // namespace

int main() {
  return on_ranks(2, train);
}
