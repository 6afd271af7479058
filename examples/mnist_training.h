// The first tutorial's training loop. The programs that use it differ in how they average the
// gradients.
#pragma once

#include <ATen/ops/nll_loss.h>
#include <lockstep/data/digits.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/mnist.h>
#include <lockstep/data/partition.h>
#include <lockstep/model/simple_cnn.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <functional>
#include <string>

#include "number_checks.h"
#include "on_ranks.h"

struct MnistTraining {
  std::string data = "digits";
  int epochs = 10;
  int nproc = 2;

  void add_options(CLI::App& app) {
    app.add_option("--data", data,
                   "folder of MNIST's four files, or \"digits\": made in data/digits")
        ->capture_default_str();
    app.add_option("--epochs", epochs, "passes over the training set")
        ->check(above_zero())
        ->capture_default_str();
    app.add_option("--nproc", nproc, "ranks to start when no launcher did")
        ->check(above_zero())
        ->capture_default_str();
  }
};

// As Python prints a float: the fewest digits that give the same number again.
inline std::string shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

using AverageGradients = std::function<void(lockstep::SimpleCnn&, lockstep::Communicator&)>;

inline void train(lockstep::Communicator& comm, const MnistTraining& settings,
                  const AverageGradients& average_gradients) {
  std::filesystem::path folder = settings.data;
  if (settings.data == "digits") {
    folder = "data/digits";
    lockstep::data::generate_digits(folder);  // the first rank to come makes it
  }
  const auto mnist = lockstep::data::mnist(folder, {.load_test = false});

  // Each rank trains on its own part, with its share of a batch of 128.
  const auto parts = lockstep::data::DataPartitioner::equal(mnist.train.size(), comm.size());
  lockstep::data::SubsetSampler sampler(parts.use(comm.rank()), {.seed = 1234});
  lockstep::data::Loader loader(
      mnist.train, sampler,
      {.batch_size = std::max(1, 128 / comm.size()), .device = comm.device()});

  torch::manual_seed(1234);  // the same parameters on all ranks: nothing to broadcast
  lockstep::SimpleCnn model;
  model->to(comm.device());
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    sampler.set_epoch(epoch);  // another order in every epoch
    double epoch_loss = 0;
    for (auto& [image, label] : loader) {
      optimizer.zero_grad();
      const auto loss = at::nll_loss(model(image), label);
      epoch_loss += loss.item<double>();
      loss.backward();
      average_gradients(model, comm);
      optimizer.step();
    }
    lockstep::write_all(STDOUT_FILENO, "Rank  " + std::to_string(comm.rank()) + " , epoch  " +
                                           std::to_string(epoch) + " :  " +
                                           shortest(epoch_loss / loader.batches()) + "\n");
  }
}
