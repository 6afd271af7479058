// Ranks that produce their gradients in different orders, or not at all.
#include <gtest/gtest.h>

#include <mutex>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/horovod/distributed_optimizer.h"
#include "lockstep/parallel/horovod/test_net.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::horovod_test {
namespace {

using Sgd = DistributedOptimizer<torch::optim::SGD>;
using torch::optim::SGDOptions;

const std::vector<std::vector<int>> kOrders = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}, {2, 1, 0}};

// One process on the whole batch.
Branches reference(int ranks, int steps) {
  Branches net;
  torch::optim::SGD optimizer(net->parameters(), SGDOptions(0.1).momentum(0.5));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(net, batch(2 * ranks, step)).backward();
    optimizer.step();
  }
  return net;
}

Branches trained(int ranks, int steps, DistributedGradientsOptions options, bool same_order) {
  std::mutex mutex;
  std::vector<Branches> nets;
  testing::run_threads(ranks, [&](Communicator& comm) {
    Branches net;
    Sgd optimizer(comm, net->named_parameters(), options, net->parameters(),
                  SGDOptions(0.1).momentum(0.5));
    for (int step = 0; step < steps; ++step) {
      const auto& order = kOrders[same_order ? 0 : (comm.rank() + step) % kOrders.size()];
      const auto x = batch(2 * ranks, step).chunk(ranks)[comm.rank()];
      optimizer.zero_grad();
      const auto loss = loss_of(net, x, order);
      loss.backward();
      // The caller's own collectives may be anywhere.
      const auto mean = loss.detach().clone();
      comm.all_reduce(mean, ReduceOp::kAvg);
      optimizer.step();
      EXPECT_TRUE(optimizer.missing().empty());
    }
    const std::lock_guard lock(mutex);
    nets.push_back(net);
  });
  for (const Branches& net : nets) EXPECT_TRUE(same_bits(net, nets[0])) << "rank from rank";
  return nets[0];
}

TEST(DistributedOptimizerOrders, AverageIsOneProcessOnTheWholeBatch) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Branches one = reference(ranks, 6);
    for (const bool same_order : {true, false}) {
      for (const int rounds : {1, 3, 100}) {
        for (const int64_t threshold : {1, 200, 1 << 20}) {
          DistributedGradientsOptions options;
          options.rounds = rounds;
          options.fusion_threshold = threshold;
          const Branches net = trained(ranks, 6, options, same_order);
          EXPECT_LT(largest_difference(net, one), 1e-10)
              << ranks << " ranks, " << rounds << " rounds, " << threshold << " bytes";
        }
      }
    }
  }
}

TEST(DistributedOptimizerOrders, RepeatsHaveTheSameBits) {
  for (const int ranks : {3, 4}) {
    const Branches first = trained(ranks, 5, {}, false);
    for (int repeat = 0; repeat < 5; ++repeat)
      EXPECT_TRUE(same_bits(trained(ranks, 5, {}, false), first)) << repeat;
  }
}

// Rank r leaves out branch r, in its own order: the result is the sum over the ranks, with zero
// there.
TEST(DistributedOptimizerOrders, WhatARankLeavesOutCountsAsZeroAndIsReported) {
  testing::run_threads(3, [](Communicator& comm) {
    Branches net;
    Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    const int r = comm.rank();
    const std::vector<int> mine = {(r + 2) % 3, (r + 1) % 3};
    for (int step = 0; step < 3; ++step) {
      Branches one;  // all ranks' losses in one process
      {
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < one->parameters().size(); ++i)
          one->parameters()[i].copy_(net->parameters()[i]);
      }
      for (int other = 0; other < 3; ++other)
        (loss_of(one, batch(2, other), {(other + 2) % 3, (other + 1) % 3}) / 3).backward();
      optimizer.zero_grad();
      loss_of(net, batch(2, r), mine).backward();
      optimizer.synchronize();
      for (size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_LT(
            (net->parameters()[i].grad() - one->parameters()[i].grad()).abs().max().item<double>(),
            1e-14);
      const auto missing = optimizer.missing();
      ASSERT_EQ(missing.size(), 12u);  // every parameter is missing somewhere
      EXPECT_EQ(missing[0].name, "a1.weight");
      EXPECT_EQ(missing[0].ranks, std::vector<int>{0});
      EXPECT_EQ(missing[11].name, "c2.bias");
      EXPECT_EQ(missing[11].ranks, std::vector<int>{2});
      optimizer.step();
    }
  });
}

TEST(DistributedOptimizerOrders, WhatNobodyUsedFollowsThePolicy) {
  testing::run_threads(2, [](Communicator& comm) {
    Branches net;
    const auto backward = [&](Sgd& optimizer) {
      optimizer.zero_grad();
      loss_of(net, batch(2, comm.rank()), comm.rank() == 0 ? std::vector{0, 1} : std::vector{1, 0})
          .backward();
    };
    const auto& unused = net->second[2]->weight;
    {
      Sgd leave(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
      backward(leave);
      leave.step();
      EXPECT_FALSE(unused.grad().defined());
      EXPECT_TRUE(leave.missing().empty());
    }
    {
      Sgd zero(comm, net->named_parameters(), {.unused = Unused::kZero}, net->parameters(),
               SGDOptions(0.1));
      backward(zero);
      zero.step();
      EXPECT_TRUE(torch::equal(unused.grad(), torch::zeros_like(unused)));
    }
    Sgd strict(comm, {}, {.unused = Unused::kThrow}, net->parameters(), SGDOptions(0.1));
    backward(strict);
    try {
      strict.step();
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("'parameter 8', 'parameter 9'"), std::string::npos)
          << error.what();
    }
    strict.step();  // the other ranks' gradients are there
  });
}

TEST(DistributedOptimizerOrders, ARankThatSkipsBackwardIsNamed) {
  testing::run_threads(3, [](Communicator& comm) {
    Branches net;
    Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    try {
      for (int step = 1; step <= 3; ++step) {
        optimizer.zero_grad();
        const auto loss = loss_of(net, batch(2));
        if (comm.rank() != 1 || step != 2) loss.backward();
        optimizer.step();
      }
      ADD_FAILURE() << "no error";
    } catch (const Mismatch& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("of step 2, 0 backwards"), std::string::npos) << text;
      EXPECT_NE(text.find("of step 2, 1 backwards"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1:"), std::string::npos) << text;
    }
  });
}

// A backward that throws half-way on one rank: the step can be ended, and the next one started.
TEST(DistributedOptimizerOrders, AFailedBackwardLeavesAUsableOptimizer) {
  testing::run_threads(2, [](Communicator& comm) {
    Branches net;
    Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    const auto loss = loss_of(net, batch(2));
    if (comm.rank() == 0) {
      net->second[0]->bias.register_hook(
          [thrown = std::make_shared<bool>(false)](const torch::Tensor& g) -> torch::Tensor {
            if (!std::exchange(*thrown, true)) throw std::runtime_error("no");
            return g;
          });
      EXPECT_THROW(loss.backward(), std::runtime_error);
    } else {
      loss.backward();
    }
    optimizer.synchronize();
    optimizer.zero_grad();
    loss_of(net, batch(2, comm.rank())).backward();
    optimizer.step();
    Branches one;
    torch::optim::SGD plain(one->parameters(), SGDOptions(0.1));
    ((loss_of(one, batch(2, 0)) + loss_of(one, batch(2, 1))) / 2).backward();
    plain.step();
    EXPECT_LT(largest_difference(net, one), 1e-12);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::horovod_test
