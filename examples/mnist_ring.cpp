// mnist_from_scratch with an all-reduce of its own: a ring of sends and receives between
// neighbours (lockstep/comm/algorithms/ring.h) instead of the engine's.
#include <lockstep/replicas/average_gradients.h>

#include "mnist_training.h"

int main(int argc, char** argv) {
  using lockstep::algorithms::AllReduce;
  CLI::App app("Trains a small network on MNIST, averaging the ranks' gradients around a ring.");
  MnistTraining settings;
  settings.add_options(app);
  bool naive = false;
  app.add_flag("--naive", naive, "pass whole tensors around, as the tutorial does, not chunks");
  CLI11_PARSE(app, argc, argv);

  const AllReduce algorithm = naive ? AllReduce::kNaiveRing : AllReduce::kRing;
  return on_ranks(settings.nproc, [&](auto& comm) {
    train(comm, settings, [&](auto& model, auto& comm) {
      lockstep::average_gradients(model, comm, {.algorithm = algorithm});
    });
  });
}
