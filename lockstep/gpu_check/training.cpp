// The parts "ddp" and "checkpoints".
#include <ATen/Context.h>
#include <stdlib.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/current.h"
#include "lockstep/gpu_check/rank_jobs.h"
#include "lockstep/gpu_check/ranks.h"
#include "lockstep/model/simple_cnn.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/train/accelerator.h"

namespace lockstep::inline v0::gpu_check {
namespace {

constexpr int kSteps = 20;

// The same kernels in every run, and products in float32.
void compute_alike() {
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setAllowTF32CuDNN(false);
}

SimpleCnn make_model(c10::Device device, double dropout) {
  torch::manual_seed(7);
  SimpleCnn model(SimpleCnnOptions{.dropout1 = dropout, .dropout2 = dropout});
  model->to(device);
  return model;
}

struct Batches {
  at::Tensor images;  // [steps, batch, 1, 28, 28]
  at::Tensor labels;
};
Batches make_batches(c10::Device device, int64_t batch) {
  torch::manual_seed(11);
  return {torch::randn({kSteps, batch, 1, 28, 28}).to(device),
          torch::randint(0, 10, {kSteps, batch}, torch::kLong).to(device)};
}

at::Tensor flat(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : parameters) parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

// The parameters after all steps; model(images) gives the outputs.
template <typename M>
at::Tensor train(M& model, const std::vector<at::Tensor>& parameters, const Batches& batches,
                 int64_t first, int64_t count) {
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.01).momentum(0.5));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor output = model(batches.images[step].narrow(0, first, count));
    torch::nll_loss(output, batches.labels[step].narrow(0, first, count)).backward();
    optimizer.step();
  }
  return flat(parameters).cpu();
}

// A folder that goes again.
class Scratch {
 public:
  Scratch() {
    std::string name =
        (std::filesystem::temp_directory_path() / "lockstep-gpu-check-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw system_error("mkdtemp " + name, errno);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A run of 2 * kHalf steps with dropout; `resumed`: the second half from the saved state alone.
at::Tensor run_with_dropout(Communicator& comm, const std::filesystem::path& state, bool resumed) {
  constexpr int kHalf = 4;
  const Batches batches = make_batches(comm.device(), 16);
  SimpleCnn net = make_model(comm.device(), 0.5);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  Accelerator accelerator(comm, {});
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  if (resumed) accelerator.load_state(state);
  for (int step = resumed ? kHalf : 0; step < 2 * kHalf; ++step) {
    if (step == kHalf && !resumed) accelerator.save_state(state);
    optimizer.zero_grad();
    accelerator.backward(torch::nll_loss(model(batches.images[step]), batches.labels[step]));
    optimizer.step();
  }
  return flat(net->parameters()).cpu();
}

void resume(Communicator& comm, const Rows& rows) {
  const Scratch scratch;
  const at::Tensor whole = run_with_dropout(comm, scratch.path() / "state", false);
  const at::Tensor resumed = run_with_dropout(comm, scratch.path() / "state", true);
  if (!at::equal(whole, resumed))
    rows.failed(
        "a resumed run with dropout",
        "differs by " + three_digits((whole - resumed).abs().max().item<double>()) + " at most");
  else
    rows.ok("a resumed run with dropout", "is the same in every bit");
}

void snapshot(Communicator& comm, const Options& options, const Rows& rows) {
  const int64_t bytes = int64_t{1} << (options.small ? 20 : 29);
  constexpr int64_t kTensors = 16;
  Checkpoint checkpoint;
  for (int64_t i = 0; i < kTensors; ++i) {
    checkpoint.model.tensors.emplace_back(
        "t" + std::to_string(i),
        torch::ones({bytes / kTensors / 4}, at::TensorOptions(comm.device())));
  }
  const Scratch scratch;
  double held = 0;
  {
    CheckpointWriter writer(comm);
    // The first one takes the memory that all of them use.
    for (int i = 0; i < 2; ++i) {
      device::synchronize(comm.device());
      const auto start = std::chrono::steady_clock::now();
      writer.start(scratch.path() / "snapshot", checkpoint, {.snapshot = true});
      held = seconds_since(start);
      writer.wait();
    }
  }
  const auto start = std::chrono::steady_clock::now();
  for (const auto& [name, tensor] : checkpoint.model.tensors) (void)tensor.to(at::kCPU);
  const double pageable = seconds_since(start);
  const auto speed = [&](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
  rows.ok(
      "a snapshot of " + std::to_string(bytes >> 20) + " MiB",
      "holds the step for " + three_digits(held * 1e3) + " ms (" + three_digits(speed(held)) +
          " GB/s); blocking copies to plain memory take " + three_digits(pageable * 1e3) + " ms (" +
          three_digits(speed(pageable)) + " GB/s)",
      {{"ms_held", held * 1e3}, {"GB_per_s", speed(held)}, {"pageable_GB_per_s", speed(pageable)}});
}

}  // namespace

// Twice, since a run is to repeat bit by bit where sums have one order; then rank 0 takes whole batches.
void train_as_one(Communicator& comm, const Options& options, const Rows& rows) {
  compute_alike();
  const int64_t batch = options.small ? 2 : 16;
  const Batches batches = make_batches(comm.device(), batch * comm.size());
  const auto run = [&] {
    SimpleCnn model = make_model(comm.device(), 0);
    DistributedDataParallel<SimpleCnn> ddp(model, comm);
    return train(ddp, model->parameters(), batches, batch * comm.rank(), batch);
  };
  const at::Tensor first = run(), second = run();
  const at::Tensor of_all = comm.all_gather(first.view({1, -1}));
  const bool same_on_ranks = of_all.eq(of_all[0]).all().item<bool>();
  if (comm.rank() == 0) {
    SimpleCnn model = make_model(comm.device(), 0);
    const at::Tensor alone = train(model, model->parameters(), batches, 0, batch * comm.size());
    const double apart = (alone - first).abs().max().item<double>();
    constexpr double kApart = 1e-4;  // parameters are below 1; sums of 20 steps in another order
    const std::string text = "parameters at most " + three_digits(apart * 1e6) +
                             "e-6 from one process's after " + std::to_string(kSteps) + " steps";
    rows.add("numbers of one process", apart <= kApart ? Outcome::kOk : Outcome::kFailed, text,
             {{"apart", apart}});
    rows.add("the ranks' parameters", same_on_ranks ? Outcome::kOk : Outcome::kFailed,
             same_on_ranks ? "the same bits on all" : "differ");
    // Of NCCL's order of additions nothing is promised.
    if (first.equal(second))
      rows.ok("a second run", "the same bits");
    else
      rows.add("a second run", options.engine == "nccl" ? Outcome::kOk : Outcome::kFailed,
               "other bits, " + three_digits((first - second).abs().max().item<double>() * 1e6) +
                   "e-6 at most");
  }
  comm.barrier();
}

void look_at_ddp(const Options& options, const Rows& rows) {
  for (const JobSpec& spec : specs(options, "train")) on_ranks(options, rows, spec);
}

void look_at_checkpoints(const Options& options, const Rows& rows) {
  compute_alike();
  Communicator comm = init({.backend = "local", .device = kDevice});
  rows.guard("a resumed run with dropout", [&] { resume(comm, rows); });
  rows.guard("a snapshot", [&] { snapshot(comm, options, rows); });
}

}  // namespace lockstep::inline v0::gpu_check
