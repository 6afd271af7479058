// ResNet-18 on CIFAR-10 the Horovod way: the model and the loop are those of one process; the
// parameters are broadcast once, and the optimizer is a distributed one.
//   lockstep run -np 2 cifar_horovod [--data FOLDER]
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/data/cifar10.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/shapes.h>
#include <lockstep/model/resnet.h>
#include <lockstep/parallel/horovod/broadcast.h>
#include <lockstep/parallel/horovod/distributed_optimizer.h>
#include <torch/nn/modules/loss.h>
#include <torch/optim/adam.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "on_ranks.h"

struct Settings {
  std::string data = "shapes";
  int batch_size = 512;
  int epochs = 1;
  int batches = 0;
};

void train(lockstep::Communicator& comm, const Settings& settings) {
  std::filesystem::path folder = settings.data;
  if (settings.data == "shapes") {
    folder = "data/shapes";
    lockstep::data::generate_shapes(folder);  // the first rank to come makes it
  }
  const auto cifar = lockstep::data::cifar10(folder, {.load_test = false});
  // Each rank gets its own part of the data.
  lockstep::data::DistributedSampler sampler(cifar.train.size(), comm);
  lockstep::data::Loader loader(cifar.train, sampler, {.batch_size = settings.batch_size});

  lockstep::ResNet model(lockstep::ResNetOptions{.num_classes = 10});
  model->to(comm.device());
  // Rank 0's parameters and buffers to all.
  lockstep::broadcast_parameters(model, comm, 0);

  torch::nn::CrossEntropyLoss loss_fn;
  // Adam, but for waiting in step() until every gradient is the average over the ranks.
  lockstep::DistributedOptimizer<torch::optim::Adam> optimizer(
      comm, model->named_parameters(), {}, model->parameters(), torch::optim::AdamOptions(0.001));
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    sampler.set_epoch(epoch);  // another order in every epoch
    int batch = 0;
    for (auto& [data, target] : loader) {
      optimizer.zero_grad();
      const auto loss = loss_fn(model(data.to(comm.device())), target.to(comm.device()));
      loss.backward();   // gradients are reduced as they come, in an order that the ranks agree on
      optimizer.step();  // waits for all of them
      if (++batch == settings.batches) break;
    }
  }
  if (comm.rank() == 0) {
    std::printf("training finished, saving data\n");
    lockstep::save(model, "horovod.safetensors");
  }
}

int main(int argc, char** argv) {
  CLI::App app("Trains ResNet-18 the Horovod way.");
  Settings settings;
  int nproc = 2;
  app.add_option("--data", settings.data,
                 "folder of CIFAR-10's binary files, or \"shapes\": made in data/shapes")
      ->capture_default_str();
  app.add_option("--batch-size", settings.batch_size, "a rank")->capture_default_str();
  app.add_option("--epochs", settings.epochs)->capture_default_str();
  app.add_option("--batches", settings.batches, "of an epoch; 0: all")->capture_default_str();
  app.add_option("--nproc", nproc, "ranks to start when no launcher did")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return on_ranks(nproc, [&](lockstep::Communicator& comm) { train(comm, settings); });
}
