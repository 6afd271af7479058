// All of the room in one training loop, on two ranks under DDP, compared with one process with
// torch's parts on the whole batch. docs/optimizers.md quotes it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/optim/internal/test_parameters.h"
#include "lockstep/optim/learning_rate.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::optim::training_test {

constexpr int kSteps = 30;

torch::nn::Sequential make_model() {
  torch::nn::Sequential model(torch::nn::Linear(6, 16),
                              torch::nn::LayerNorm(std::vector<int64_t>{16}), torch::nn::Tanh(),
                              torch::nn::Linear(torch::nn::LinearOptions(16, 3).bias(true)));
  model->to(at::kDouble);
  const torch::NoGradGuard no_grad;
  double value = 0.1;
  for (auto& parameter : model->parameters()) {
    parameter.copy_(torch::linspace(-0.6, 0.5, parameter.numel(), at::kDouble)
                        .view(parameter.sizes())
                        .add(value += 0.03));
  }
  return model;
}

at::Tensor inputs(int step) {
  return torch::arange(step, step + 48, at::kDouble).remainder(13).sub(6).div(3).view({8, 6});
}
at::Tensor labels(int step) {
  return torch::arange(step, step + 8, at::kLong).remainder(3);
}

// Rank r takes the batch's half r.
std::vector<at::Tensor> train(Communicator& comm) {
  DistributedDataParallel model(make_model(), comm);
  const auto batch = [&comm](const at::Tensor& whole) {
    return whole.chunk(comm.size())[comm.rank()];
  };

  const auto options = torch::optim::AdamWOptions(0.02).weight_decay(0.1);
  optim::FusedAdamW optimizer(optim::decay_groups(*model.module(), options), options);
  const auto schedule = optim::cosine({.total_steps = kSteps, .warmup = {.ratio = 0.1}});
  for (int step = 0; step < kSteps; ++step) {
    optim::set_learning_rate(optimizer, 0.02 * schedule.factor(step));
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(model(batch(inputs(step))), batch(labels(step)));
    loss.backward();
    optimizer.step({.max_norm = 0.5});
  }
  return model.module()->parameters();
}

std::vector<at::Tensor> train_alone() {
  auto model = make_model();
  std::vector<at::Tensor> decayed, spared;
  for (const auto& item : model->named_parameters())
    (item.value().dim() > 1 ? decayed : spared).push_back(item.value());
  const auto options = torch::optim::AdamWOptions(0.02).weight_decay(0.1);
  auto without = std::make_unique<torch::optim::AdamWOptions>(0.02);
  without->weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, std::make_unique<torch::optim::AdamWOptions>(options));
  groups.emplace_back(spared, std::move(without));
  torch::optim::AdamW optimizer(groups, options);
  const auto schedule = cosine({.total_steps = kSteps, .warmup = {.steps = 3}});
  int clipped = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (auto& group : optimizer.param_groups())
      group.options().set_lr(0.02 * schedule.factor(step));
    optimizer.zero_grad();
    torch::cross_entropy_loss(model->forward(inputs(step)), labels(step)).backward();
    clipped += torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5) > 0.5;
    optimizer.step();
  }
  EXPECT_GT(clipped, 0);
  return model->parameters();
}

TEST(Training, OnTwoRanksIsOneProcessWithTorchsParts) {
  const auto expected = train_alone();
  std::mutex mutex;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto parameters = train(comm);
    const std::lock_guard lock(mutex);
    // The clipping factor is a float32.
    EXPECT_LT(test::relative_distance(parameters, expected), 1e-6) << "rank " << comm.rank();
    EXPECT_GT(test::relative_distance(parameters, make_model()->parameters()), 1e-2);
  });
}

}  // namespace lockstep::inline v0::optim::training_test
