// ZeRO from a DeepSpeed-style JSON: each rank keeps a part of the optimizer's state only. Trains,
// saves a checkpoint and goes on from it. Runs on 2 ranks of its own when started by hand.
//   zero [CONFIG.json]
#include <lockstep/parallel/zero/engine.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>

#include "on_ranks.h"
#include "usage.h"

namespace {

constexpr const char* kConfig = R"({
  "train_micro_batch_size_per_gpu": 32,
  "gradient_accumulation_steps": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.01}},
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 1}
})";

// The mean loss of `steps` micro-batches.
double train(lockstep::zero::Engine<torch::nn::Sequential>& engine, at::Device device, int steps) {
  double sum = 0;
  for (int step = 0; step < steps; ++step) {
    const auto x = torch::randn({engine.train_micro_batch_size(), 16}).to(device);
    const auto y = x.narrow(1, 0, 4).argmax(1);
    const auto logits = engine.forward(x);
    const auto loss = torch::nn::functional::cross_entropy(logits, y);
    engine.backward(loss);  // divides by the number of micro-batches, averages over the ranks
    engine.step();          // acts on every second call
    sum += loss.item<double>();
  }
  return sum / steps;
}

torch::nn::Sequential make_net(at::Device device) {
  torch::nn::Sequential net(torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 4));
  net->to(device);
  return net;
}

void example(lockstep::Communicator& comm, const lockstep::zero::ZeroConfig& config) {
  auto engine = lockstep::zero::initialize(make_net(comm.device()), comm, config);
  torch::manual_seed(comm.rank());  // other data on every rank
  const double first = train(engine, comm.device(), 10);
  engine.save_checkpoint("zero_checkpoints");

  auto resumed = lockstep::zero::initialize(make_net(comm.device()), comm, config);
  const auto loaded = resumed.load_checkpoint("zero_checkpoints");
  const double last = train(resumed, comm.device(), 90);

  int64_t numel = 0;
  for (const auto& parameter : resumed->parameters()) numel += parameter.numel();
  std::printf("rank %d of %d: loss %.2f, from %s on %.2f; keeps %lld elements of state of %lld\n",
              comm.rank(), comm.size(), first, loaded.tag.c_str(), last,
              static_cast<long long>(resumed.optimizer().state_numel()),
              2 * static_cast<long long>(numel));
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = usage_asked(argc, argv, "zero [CONFIG.json]")) return *code;
  return on_ranks(2, [&](lockstep::Communicator& comm) {
    using namespace lockstep::zero;
    example(comm, argc > 1 ? load_zero_config(argv[1]) : zero_config_from_json(kConfig, "zero"));
  });
}
