// The same among processes, in their shared memory.
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/horovod/broadcast.h"
#include "lockstep/parallel/horovod/distributed_optimizer.h"
#include "lockstep/parallel/horovod/test_net.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::horovod_test {
namespace {

using torch::optim::SGDOptions;
using Sgd = DistributedOptimizer<torch::optim::SGD>;

TEST(HorovodProcesses, RanksWithDifferentOrdersFollowOneProcess) {
  for (const char* backend : {"shm", "gloo", "tcp"}) {
    testing::expect_ranks(
        2,
        [](Communicator& comm) {
          const std::vector<std::vector<int>> orders = {{0, 1, 2}, {2, 0, 1}};
          Branches net, one;
          if (comm.rank() == 1) {
            const torch::NoGradGuard no_grad;
            for (auto& p : net->parameters()) p.zero_();
          }
          broadcast_parameters(net, comm);
          Sgd optimizer(comm, net->named_parameters(), {.fusion_threshold = 300}, net->parameters(),
                        SGDOptions(0.1).momentum(0.5));
          torch::optim::SGD plain(one->parameters(), SGDOptions(0.1).momentum(0.5));
          for (int step = 0; step < 10; ++step) {
            optimizer.zero_grad();
            loss_of(net, batch(4, step).chunk(2)[comm.rank()], orders[(comm.rank() + step) % 2])
                .backward();
            optimizer.step();
            plain.zero_grad();
            loss_of(one, batch(4, step)).backward();
            plain.step();
          }
          EXPECT_LT(largest_difference(net, one), 1e-10);
        },
        {.backend = backend}, backend);
  }
}

TEST(HorovodProcesses, ARankThatSkipsBackwardIsNamed) {
  testing::expect_ranks(2, [](Communicator& comm) {
    Branches net;
    Sgd optimizer(comm, net->named_parameters(), {}, net->parameters(), SGDOptions(0.1));
    const auto loss = loss_of(net, batch(2));
    try {
      if (comm.rank() == 0) loss.backward();  // throws if rank 1 is at its step already
      optimizer.step();
      ADD_FAILURE() << "no error";
    } catch (const Mismatch& error) {
      EXPECT_NE(std::string(error.what()).find("of step 1, 0 backwards"), std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace lockstep::inline v0::horovod_test
