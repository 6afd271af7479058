// What the book's three training programs share: CIFAR-10 as tensors of 0..1, batches of 512 a
// rank, and the last lines.
#pragma once

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/data/cifar10.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/shapes.h>
#include <lockstep/model/resnet.h>
#include <torch/nn/functional/loss.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "number_checks.h"
#include "on_ranks.h"

inline constexpr int64_t kBatchSize = 512;  // a rank

struct CifarTraining {
  std::string data = "shapes";
  int epochs = 1;
  int64_t limit = 0;
  int nproc = 2;

  void add_options(CLI::App& app) {
    app.add_option("--data", data,
                   "folder of CIFAR-10's .bin files, or \"shapes\": made in data/shapes")
        ->capture_default_str();
    app.add_option("--epochs", epochs, "passes over the training set")
        ->check(above_zero())
        ->capture_default_str();
    app.add_option("--limit", limit, "train on so many images only; 0: all")->check(zero_or_more());
    app.add_option("--nproc", nproc, "ranks to start when no launcher did")
        ->check(above_zero())
        ->capture_default_str();
  }

  // Pixels of 0..1, as torchvision's ToTensor() gives them.
  lockstep::data::ImageDataset load() const {
    std::filesystem::path folder = data;
    if (data == "shapes") {
      folder = "data/shapes";
      lockstep::data::generate_shapes(folder);  // the first rank to come makes it
    }
    const std::vector<double> zero{0}, one{1};
    const auto all =
        lockstep::data::cifar10(folder, {.mean = zero, .stddev = one, .load_test = false}).train;
    const int64_t size = limit > 0 ? std::min(limit, all.size()) : all.size();
    return {all.images().narrow(0, 0, size), all.labels().narrow(0, 0, size), zero, one};
  }
};

inline void finish(lockstep::Communicator& comm, const lockstep::ResNet& model) {
  if (comm.rank() != 0) return;
  lockstep::write_all(STDOUT_FILENO, "training finished, saving data\n");
  lockstep::save(model, "000.safetensors");
}
