// Saves a model on one rank and loads it on all, each onto its own device. Runs on 2 ranks of its
// own when started by hand.
//   checkpoint [FILE]
#include <ATen/ops/equal.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/parallel/ddp/ddp.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <filesystem>

#include "on_ranks.h"
#include "usage.h"

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "checkpoint [FILE]")) return *code;
  const std::filesystem::path path =
      argc > 1 ? argv[1] : std::filesystem::temp_directory_path() / "lockstep_model.safetensors";

  return on_ranks(2, [&path](lockstep::Communicator& comm) {
    torch::nn::Linear linear(10, 10);
    linear->to(comm.device());
    lockstep::DistributedDataParallel model(linear, comm);

    // All ranks hold the same parameters, so one of them saves. The file holds the plain names
    // (weight, bias): a program without DistributedDataParallel can load it.
    if (comm.rank() == 0) lockstep::save(model.module(), path);
    comm.barrier();  // no rank reads before the file is there

    // Each rank's own device, whatever device the file's tensors came from.
    torch::nn::Linear loaded(10, 10);
    lockstep::load(loaded, path, comm.device());

    const bool same =
        at::equal(loaded->weight, model->weight) && at::equal(loaded->bias, model->bias);
    std::printf("rank %d of %d: %s\n", comm.rank(), comm.size(),
                same ? "loaded what was saved" : "LOADED SOMETHING ELSE");
  });
}
