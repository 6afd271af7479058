// The book's third training program: the Horovod way. The model and the loop are those of one
// process; the parameters are broadcast once, and the optimizer is a distributed one.
#include <lockstep/parallel/horovod/broadcast.h>
#include <lockstep/parallel/horovod/distributed_optimizer.h>
#include <torch/optim/adam.h>

#include "cifar_training.h"

namespace {

void train(lockstep::Communicator& comm, const CifarTraining& settings) {
  const auto dataset = settings.load();
  lockstep::data::DistributedSampler sampler(dataset.size(), comm);
  lockstep::data::Loader loader(dataset, sampler,
                                {.batch_size = kBatchSize, .device = comm.device()});

  lockstep::ResNet model;  // resnet18
  model->to(comm.device());
  // Rank 0's parameters and buffers to all.
  lockstep::broadcast_parameters(model, comm, 0);

  // Adam, but for waiting in step() until every gradient is the average over the ranks.
  lockstep::DistributedOptimizer<torch::optim::Adam> optimizer(
      comm, model->named_parameters(), {}, model->parameters(), torch::optim::AdamOptions(0.001));
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    sampler.set_epoch(epoch);  // another order in every epoch
    for (auto& [data, target] : loader) {
      optimizer.zero_grad();
      const auto loss = torch::nn::functional::cross_entropy(model(data), target);
      loss.backward();   // gradients are reduced as they come, in an order that the ranks agree on
      optimizer.step();  // waits for all of them
    }
  }
  finish(comm, model);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains resnet18 on CIFAR-10 with Adam, the Horovod way.");
  CifarTraining settings;
  settings.add_options(app);
  CLI11_PARSE(app, argc, argv);
  return on_ranks(settings.nproc, [&](auto& comm) { train(comm, settings); });
}
