// What fsdp_parity.py runs: fsdp_parity FOLDER STAGE reads config.json, model.safetensors and
// batches.safetensors (ids and targets, [steps, rows, tokens]) from FOLDER, trains with AdamW and clipping on
// two ranks, each with its half of the rows, and leaves losses.safetensors and trained.safetensors there. STAGE
// is ZeroOptimizer's, or "units": stage 3 with layers that two copies divide.
#include <ATen/Parallel.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/safetensors.h>
#include <lockstep/model/transformer_lm.h>
#include <lockstep/parallel/zero/zero_optimizer.h>
#include <lockstep/testing/thread_ranks.h>
#include <torch/types.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

using namespace lockstep;
constexpr int kRanks = 2;

void train(Communicator& comm, const std::filesystem::path& folder, const std::string& stage) {
  at::set_num_threads(1);
  std::ifstream file(folder / "config.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const Safetensors batches = read_safetensors(folder / "batches.safetensors");
  const Safetensors initial = read_safetensors(folder / "model.safetensors");
  TransformerLm model(lm_config_from_json(text, "config.json"),
                      LmOptions{.initial = InitialParameters::kNone});
  model->to(initial.tensors.front().second.scalar_type());
  load(model, folder / "model.safetensors");
  ZeroOptions options{.stage = stage == "units" ? 3 : std::stoi(stage),
                      .bucket_sizes = {.first = 20'000, .rest = 20'000}};
  if (stage == "units") {
    options.units.model = model.ptr();
    options.copies = {0, 1};
  }
  ZeroOptimizer optimizer(comm, to_named_tensors(model->named_parameters()),
                          torch::optim::AdamWOptions(1e-3).weight_decay(0.1), options);
  const at::Tensor ids = *batches.find("ids"), targets = *batches.find("targets");
  const int64_t rows = ids.size(1) / kRanks;
  const at::Tensor losses = torch::empty({ids.size(0)}, at::kDouble);
  for (int64_t step = 0; step < ids.size(0); ++step) {
    const auto own = [&](const at::Tensor& all) {
      return all[step].narrow(0, comm.rank() * rows, rows).contiguous();
    };
    const at::Tensor loss = next_token_loss(model(own(ids)), own(targets));
    loss.backward();
    optimizer.step({.max_norm = 0.5});
    losses[step] = loss.item<double>();
  }
  comm.all_reduce(losses, ReduceOp::kAvg);
  const auto whole = optimizer.whole_parameters();
  if (comm.rank() == 0) {
    write_safetensors(folder / "losses.safetensors", {{"losses", losses}});
    save(model, folder / "trained.safetensors");
  }
  comm.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: fsdp_parity FOLDER 1|2|3|units\n", stderr);
    return 2;
  }
  try {
    testing::run_threads(kRanks, [&](Communicator& comm) { train(comm, argv[1], argv[2]); });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fsdp_parity: %s\n", error.what());
    return 1;
  }
}
