// A way of parallelism of one's own, outside of Lockstep's tree: no gradient travels, and every
// eighth step the ranks' parameters are averaged.
#include <lockstep/lockstep.h>
#include <lockstep/train/strategy.h>
#include <torch/torch.h>

#include <cstdio>

namespace {

class LocalSteps final : public lockstep::StrategyState {
 public:
  explicit LocalSteps(int64_t period) : period_(period) {}
  bool step(torch::optim::Optimizer& optimizer, const lockstep::StrategyStep& options) override {
    const bool taken = StrategyState::step(optimizer, options);
    if (++steps_ % period_ == 0) lockstep::average_parameters(model(), comm());
    return taken;
  }

 private:
  int64_t period_, steps_ = 0;
};

void train() {
  lockstep::Strategy::Parts parts{.name = "local-steps", .state = std::make_unique<LocalSteps>(8)};
  const auto strategy = std::make_shared<lockstep::Strategy>(std::move(parts));
  lockstep::Accelerator accelerator(lockstep::init(), {.strategy = strategy});
  torch::manual_seed(1 + accelerator.process_index());
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 1000; ++step) {
    const auto x = torch::rand({8, 1});
    optimizer.zero_grad();
    accelerator.backward((model(x) - (3 * x - 1)).pow(2).mean());
    optimizer.step();
  }
  std::printf("rank %d: weight %.2f, bias %.2f\n", accelerator.process_index(),
              net->weight.item<double>(), net->bias.item<double>());
}

}  // namespace

int main() {
  return lockstep::launch::spawn(2, train).exit_code;
}
