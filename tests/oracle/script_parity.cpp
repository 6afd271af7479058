// Trains a TorchScript file that Python has written, on ranks that are threads: see
// script_parity.py, which runs it.
//
//   script_parity FOLDER WAY RANKS STEPS
//
// FOLDER/model.pt: the module; FOLDER/batch.safetensors: "inputs" and "targets". WAY: ddp, average
// or averager. Writes FOLDER/trained.safetensors. A model that cannot be trained is exit status 1
// and one line on stderr.
#include <ATen/Parallel.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/ddp/gradient_averager.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/replicas/broadcast_parameters.h"
#include "lockstep/testing/thread_ranks.h"

namespace {

using namespace lockstep;

// forward(x): the module's output; after_backward(): before each step.
template <typename Forward, typename After>
void train(torch::jit::Module& model, Communicator& comm, const Safetensors& batch, int steps,
           const Forward& forward, const After& after_backward) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& one : model.parameters()) parameters.push_back(one);
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
  const at::Tensor inputs = batch.find("inputs")->chunk(comm.size())[comm.rank()];
  const at::Tensor targets = batch.find("targets")->chunk(comm.size())[comm.rank()];
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(forward(inputs).toTensor(), targets).backward();
    after_backward();
    optimizer.step();
  }
}

void run_rank(Communicator& comm, const std::filesystem::path& folder, const std::string& way,
              int steps) {
  torch::jit::Module model = torch::jit::load((folder / "model.pt").string());
  model.train();
  const Safetensors batch = read_safetensors(folder / "batch.safetensors");
  if (comm.rank() != 0) {  // rank 0's values count
    const torch::NoGradGuard no_grad;
    for (at::Tensor one : model.parameters()) one.zero_();
  }
  if (way == "ddp") {
    DistributedDataParallel ddp(model, comm);
    train(model, comm, batch, steps, [&](const at::Tensor& x) { return ddp(x); }, [] {});
  } else if (way == "averager") {
    broadcast_parameters(model, comm);
    GradientAverager averager(model, comm);
    train(
        model, comm, batch, steps, [&](const at::Tensor& x) { return model.forward({x}); }, [] {});
  } else {
    broadcast_parameters(model, comm);
    train(
        model, comm, batch, steps, [&](const at::Tensor& x) { return model.forward({x}); },
        [&] { average_gradients(model, comm); });
  }
  if (comm.rank() == 0) save(model, folder / "trained.safetensors");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: script_parity FOLDER WAY RANKS STEPS\n");
    return 2;
  }
  at::set_num_threads(1);
  try {
    testing::run_threads(std::stoi(argv[3]), [&](Communicator& comm) {
      run_rank(comm, argv[1], argv[2], std::stoi(argv[4]));
    });
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
