#include "lockstep/parallel/horovod/broadcast.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/lamb.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::broadcast_test {
namespace {

TEST(BroadcastParameters, GivesEverybodyTheRootsParametersAndBuffers) {
  testing::run_threads(3, [](Communicator& comm) {
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    {
      const torch::NoGradGuard no_grad;
      for (auto& p : net->parameters()) p.fill_(comm.rank());
      for (auto& b : net->buffers()) b.fill_(10 + comm.rank());
    }
    broadcast_parameters(net, comm, 2);
    for (auto& p : net->parameters()) EXPECT_TRUE(torch::equal(p, torch::full_like(p, 2)));
    for (auto& b : net->buffers()) EXPECT_TRUE(torch::equal(b, torch::full_like(b, 12)));
  });
}

TEST(BroadcastParameters, NamesADifference) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Linear layer(3, 4 + comm.rank());
    try {
      broadcast_parameters(layer, comm);
      ADD_FAILURE() << "no error";
    } catch (const Mismatch& error) {
      EXPECT_NE(std::string(error.what()).find("weight float32 [4, 3] on rank 0"),
                std::string::npos)
          << error.what();
    }
  });
}

// Rank 1 has a state, rank 0 has none and another learning rate: both continue as rank 1 would.
template <typename Optimizer, typename Options>
void shares_its_state(Options options) {
  testing::run_threads(2, [&](Communicator& comm) {
    const auto make = [&](double rate) {
      std::vector<torch::Tensor> parameters = {torch::ones({3}).set_requires_grad(true),
                                               torch::ones({2, 2}).set_requires_grad(true)};
      Options own = options;
      own.lr(rate);
      return std::pair(parameters, std::make_unique<Optimizer>(parameters, own));
    };
    const auto step = [](auto& run) {
      run.second->zero_grad();
      (run.first[0].pow(3).sum() + run.first[1].pow(2).sum()).backward();
      run.second->step();
    };
    auto mine = make(comm.rank() == 1 ? 0.01 : 0.5);
    if (comm.rank() == 1) {
      step(mine);
      step(mine);
    }
    broadcast_parameters({{"a", mine.first[0]}, {"b", mine.first[1]}}, comm, 1);
    broadcast_optimizer_state(*mine.second, comm, 1);
    step(mine);
    auto expected = make(0.01);
    for (int i = 0; i < 3; ++i) step(expected);
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(torch::equal(mine.first[i], expected.first[i])) << "rank " << comm.rank();
  });
}

TEST(BroadcastOptimizerState, OfEveryKind) {
  using namespace torch::optim;
  shares_its_state<SGD>(SGDOptions(0.1).momentum(0.9));
  shares_its_state<SGD>(SGDOptions(0.1));
  shares_its_state<Adam>(AdamOptions().amsgrad(true));
  shares_its_state<AdamW>(AdamWOptions());
  shares_its_state<RMSprop>(RMSpropOptions().momentum(0.9).centered(true));
  shares_its_state<Adagrad>(AdagradOptions());
  shares_its_state<optim::FusedSGD>(SGDOptions(0.1).momentum(0.9));
  shares_its_state<optim::FusedAdam>(AdamOptions());
  shares_its_state<optim::FusedAdamW>(AdamWOptions());
  shares_its_state<optim::Lamb>(AdamWOptions());
}

TEST(BroadcastOptimizerState, AKindThatCannotBeSavedIsRefusedOnAllRanks) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::optim::LBFGS optimizer({torch::ones({3}).set_requires_grad(true)});
    EXPECT_THROW(broadcast_optimizer_state(optimizer, comm), InvalidArgument);
    comm.barrier();  // the ranks are still in step
  });
}

}  // namespace
}  // namespace lockstep::inline v0::broadcast_test
