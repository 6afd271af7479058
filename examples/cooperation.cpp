// What ranks do together and what one of them does for all: the usual pitfalls, done right. Runs on
// 2 ranks of its own when started by hand.
//   cooperation [FOLDER]
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/on_root.h>
#include <lockstep/comm/objects.h>
#include <lockstep/comm/same_on_all_ranks.h>
#include <lockstep/parallel/horovod/broadcast.h>
#include <lockstep/parallel/horovod/distributed_optimizer.h>
#include <lockstep/report/tensorboard.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "on_ranks.h"
#include "usage.h"

namespace {

namespace fs = std::filesystem;

// Rank 0 makes the folder; no rank opens a file in it before it is there.
std::ofstream open_log(lockstep::Communicator& comm, const fs::path& folder) {
  if (comm.rank() == 0) fs::create_directories(folder);
  comm.barrier();
  return std::ofstream(folder / (std::to_string(comm.rank()) + ".log"));
}

// Only rank 0 has the checkpoint's file; all ranks get what is in it. The wrong way: to broadcast
// a variable that exists on rank 0 alone.
int64_t load_everywhere(lockstep::Communicator& comm, const fs::path& file,
                        torch::nn::Linear& model) {
  nlohmann::json position;       // on the other ranks: nothing yet
  lockstep::on_root(comm, [&] {  // if it throws, all ranks do
    const auto metadata = lockstep::load(model, file);
    position = {{"step", std::stoll(metadata.at("step"))}};
  });
  position = lockstep::broadcast_object(comm, position, 0);
  lockstep::broadcast_parameters(model, comm, 0);
  return position["step"].get<int64_t>();
}

// A bad batch on one rank: all ranks leave the step out, or none. The wrong way: `continue` on that
// rank alone, which then pairs its next step with the others' this one.
bool all_have_good_data(lockstep::Communicator& comm, const torch::Tensor& x) {
  const torch::Tensor bad = at::zeros({1}, at::kInt);
  if (!at::isfinite(x).all().item<bool>()) bad.fill_(1);
  comm.all_reduce(bad, lockstep::ReduceOp::kMax);
  return bad.item<int>() == 0;
}

void example(lockstep::Communicator& comm, const fs::path& folder) {
  std::ofstream log = open_log(comm, folder);

  torch::manual_seed(comm.rank());  // other parameters on every rank, so far
  torch::nn::Linear model(4, 1);
  model->to(comm.device());
  const fs::path file = folder / "checkpoint.safetensors";
  if (comm.rank() == 0) lockstep::save(model, file, {{"step", "100"}});
  const int64_t first = load_everywhere(comm, file, model);

  // One rank's files: rank 0 writes what TensorBoard shows.
  std::optional<lockstep::TensorBoardWriter> board;
  if (comm.rank() == 0) board.emplace(folder / "tensorboard");

  lockstep::DistributedOptimizer<torch::optim::SGD> optimizer(
      comm, model->named_parameters(), {}, model->parameters(), torch::optim::SGDOptions(0.1));
  int taken = 0;
  for (int64_t step = first; step < first + 5; ++step) {
    auto x = torch::randn({8, 4}).to(comm.device());
    if (comm.rank() == comm.size() - 1 && step == first + 2) x[0][0] = NAN;
    if (!all_have_good_data(comm, x)) continue;
    optimizer.zero_grad();
    const auto loss = (model(x) - x.sum(1, true)).pow(2).mean();
    loss.backward();
    optimizer.step();
    ++taken;
    log << "step " << step << " loss " << loss.item<double>() << "\n";

    // A collective is for all ranks; what is done with its result may be for one.
    const auto mean = loss.detach().clone();
    comm.all_reduce(mean, lockstep::ReduceOp::kAvg);
    if (board) board->add_scalar("loss/train", mean.item<double>(), step);
  }

  // Throws, on all ranks, if one rank's parameters are others.
  lockstep::check_equal_values(comm, lockstep::module_state(*model));
  std::printf("rank %d of %d: from step %d, %d steps, the same parameters\n", comm.rank(),
              comm.size(), static_cast<int>(first), taken);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "cooperation [FOLDER]")) return *code;
  const fs::path folder = argc > 1 ? argv[1] : fs::temp_directory_path() / "lockstep_cooperation";
  return on_ranks(2, [&](lockstep::Communicator& comm) { example(comm, folder); });
}
