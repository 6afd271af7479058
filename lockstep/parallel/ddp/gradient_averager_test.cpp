#include "lockstep/parallel/ddp/gradient_averager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/core/errors.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::gradient_averager_test {
namespace {

torch::nn::Linear layer(double value) {
  torch::nn::Linear made(3, 2);
  const torch::NoGradGuard no_grad;
  for (auto& p : made->parameters()) p.fill_(value);
  return made;
}

at::Tensor input(int rank) {
  return torch::arange(3).to(torch::kFloat) + 2.0 * rank;
}

TEST(GradientAverager, HasTheBitsOfAverageGradients) {
  testing::run_threads(4, [](Communicator& comm) {
    torch::nn::Linear one = layer(0.5), other = layer(0.5);
    GradientAverager averager(one, comm);
    for (int step = 0; step < 3; ++step) {
      one->zero_grad();
      other->zero_grad();
      one->forward(input(comm.rank() + step)).sum().backward();
      other->forward(input(comm.rank() + step)).sum().backward();
      average_gradients(other, comm);
      EXPECT_TRUE(torch::equal(one->weight.grad(), other->weight.grad()));
      EXPECT_TRUE(torch::equal(one->bias.grad(), other->bias.grad()));
    }
  });
}

TEST(GradientAverager, AccumulatesQuietly) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net = layer(1);
    GradientAverager averager(net, comm);
    const auto backward = [&](int at) { net->forward(input(at)).sum().backward(); };
    {
      const auto quiet = averager.no_sync();
      backward(comm.rank());
    }
    EXPECT_TRUE(torch::equal(net->weight.grad()[0], input(comm.rank())));
    backward(comm.rank() + 1);
    const auto mean = (input(0) + input(1) + input(1) + input(2)) / 2;
    EXPECT_TRUE(torch::equal(net->weight.grad()[0], mean));

    net->zero_grad();
    averager.accumulate(2);
    EXPECT_FALSE(averager.communicates());
    backward(comm.rank());
    EXPECT_TRUE(averager.communicates());
    backward(comm.rank() + 1);
    EXPECT_TRUE(torch::equal(net->weight.grad()[0], mean));
  });
}

TEST(GradientAverager, ARankThatSkipsAStepIsNoticed) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net = layer(1);
    GradientAverager averager(net, comm);
    if (comm.rank() == 1) averager.before_forward(net);
    averager.before_forward(net);
    EXPECT_THROW(net->forward(input(0)).sum().backward(), Mismatch);
  });
}

TEST(GradientAverager, FrozenParametersAreLeftOut) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net = layer(1);
    net->bias.set_requires_grad(false);
    GradientAverager averager(net, comm);
    net->forward(input(comm.rank())).sum().backward();
    EXPECT_FALSE(net->bias.grad().defined());
    EXPECT_TRUE(torch::equal(net->weight.grad()[0], (input(0) + input(1)) / 2));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::gradient_averager_test
