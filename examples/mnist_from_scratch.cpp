// Data parallelism from scratch: the gradients are averaged by hand after each backward.
// mnist_ddp.cpp is the same in fewer lines.
#include "mnist_training.h"

namespace {

// lockstep::average_gradients() does this, and copes with parameters that a rank did not use.
void average_gradients(lockstep::SimpleCnn& model, lockstep::Communicator& comm) {
  for (const auto& parameter : model->parameters()) {
    comm.all_reduce(parameter.grad());
    parameter.grad().div_(comm.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small network on MNIST, averaging the ranks' gradients by hand.");
  MnistTraining settings;
  settings.add_options(app);
  CLI11_PARSE(app, argc, argv);
  return on_ranks(settings.nproc, [&](auto& comm) { train(comm, settings, average_gradients); });
}
