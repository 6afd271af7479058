// The book's second training program: DistributedSampler and DistributedDataParallel.
#include <lockstep/parallel/ddp/ddp.h>
#include <torch/optim/adam.h>

#include "cifar_training.h"

namespace {

void train(lockstep::Communicator& comm, const CifarTraining& settings) {
  const auto dataset = settings.load();
  lockstep::data::DistributedSampler sampler(dataset.size(), comm);
  lockstep::data::Loader loader(dataset, sampler,
                                {.batch_size = kBatchSize, .device = comm.device()});

  lockstep::ResNet net;  // resnet18
  net->to(comm.device());
  lockstep::DistributedDataParallel model(net, comm);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.001));
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    sampler.set_epoch(epoch);  // another order in every epoch
    for (auto& [data, target] : loader) {
      optimizer.zero_grad();
      const auto loss = torch::nn::functional::cross_entropy(model(data), target);
      loss.backward();  // averages the gradients
      optimizer.step();
    }
  }
  finish(comm, model.module());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains resnet18 on CIFAR-10 with Adam and DistributedDataParallel.");
  CifarTraining settings;
  settings.add_options(app);
  CLI11_PARSE(app, argc, argv);
  return on_ranks(settings.nproc, [&](auto& comm) { train(comm, settings); });
}
