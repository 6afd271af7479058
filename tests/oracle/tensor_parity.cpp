// What tensor_parity.py runs: tensor_parity FOLDER RATE MOMENTUM trains the model in FOLDER (two_ranks.py)
// divided among two ranks, with SGD, and leaves what came of it there.
#include <ATen/Parallel.h>
#include <lockstep/shard/tensor_parallel_lm.h>
#include <lockstep/testing/thread_ranks.h>

#include "two_ranks.h"

namespace {

using namespace lockstep;

void train(Communicator& comm, const std::filesystem::path& folder, double rate, double momentum) {
  at::set_num_threads(1);
  const oracle::Batches batches = oracle::batches_of(folder);
  TransformerLm lm = tensor_parallel_lm(oracle::model_of(folder), comm);
  TensorParts parts = lm_tensor_parts(lm->config(), comm);
  const NamedTensors own = parameters_of(lm);
  torch::optim::SGD optimizer(lm->parameters(), torch::optim::SGDOptions(rate).momentum(momentum));
  oracle::Results results;
  for (int64_t step = 0; step < batches.ids.size(0); ++step) {
    optimizer.zero_grad();
    const at::Tensor loss =
        lm->loss(batches.ids[step].contiguous(), batches.targets[step].contiguous());
    loss.backward();
    if (step == 0) results.gradients = parts.gather(oracle::gradients_of(own));
    optimizer.step();
    results.losses.push_back(loss.item<double>());
  }
  results.trained = parts.gather(own);
  if (comm.rank() == 0) oracle::write(folder, results);
  comm.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: tensor_parity FOLDER RATE MOMENTUM\n", stderr);
    return 2;
  }
  return oracle::guarded("tensor_parity", [&] {
    testing::run_threads(oracle::kRanks, [&](Communicator& comm) {
      train(comm, argv[1], std::stod(argv[2]), std::stod(argv[3]));
    });
  });
}
