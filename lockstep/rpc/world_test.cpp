// Agents of all ranks of a communicator.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/rpc/agent.h"
#include "lockstep/rpc/rpc_test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::rpc {
namespace {

// Rank 0 serves the store that the others ask while they end.
TEST(World, WhoServesTheStoreEndsLast) {
  for (int i = 0; i < 20; ++i)
    lockstep::testing::run_threads(4, [](Communicator& comm) { init(comm, {}).shutdown(); });
}

TEST(World, ShutdownWaitsForEverybodyAndNamesWhoDoesNotCome) {
  lockstep::testing::run_threads(3, [](Communicator& comm) {
    Agent agent = init(comm, Registry().add("who", [] { return caller(); }));
    EXPECT_EQ(agent.world(), (std::vector<std::string>{"worker0", "worker1", "worker2"}));
    const std::string next = "worker" + std::to_string((comm.rank() + 1) % 3);
    EXPECT_EQ(agent.rpc_sync<std::string>(next, "who"), agent.name());
    agent.shutdown();
    EXPECT_THROW(agent.rpc_sync<std::string>(next, "who"), Cancelled);
  });
  const Town town;
  Agent a = town.agent("a", {}, {.world = {"a", "b"}});
  EXPECT_THAT(message_of([&] { a.shutdown(std::chrono::milliseconds(200)); }),
              ::testing::HasSubstr("'b' has not come to it"));
}

TEST(World, FunctionsOfOtherTypesAreFoundAtTheStart) {
  lockstep::testing::run_threads(3, [](Communicator& comm) {
    Registry registry;
    registry.add("same", [](double x) { return x; });
    if (comm.rank() < 2)
      registry.add("sum", [](const at::Tensor& a, const at::Tensor& b) { return a + b; });
    else
      registry.add("sum", [](const at::Tensor& a, int b) { return a + b; });
    const std::string message = message_of([&] { init(comm, std::move(registry)); });
    EXPECT_THAT(message,
                ::testing::AllOf(::testing::HasSubstr("'sum' is (tensor, tensor) -> tensor on"),
                                 ::testing::HasSubstr("'worker0' but (tensor, int) -> tensor on"),
                                 ::testing::HasSubstr("'worker2'")));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  });
}

// All ranks detect an impossible map, instead of the first call.
TEST(World, MapsOfDevicesLeadSomewhere) {
  const auto said = [](const std::string& peer, const at::Device& here = at::Device("cuda:0")) {
    std::string text;
    lockstep::testing::run_threads(3, [&](Communicator& comm) {
      AgentOptions options;
      if (comm.rank() == 2) options.set_device_map(peer, {{here, at::Device("cuda:100")}});
      const std::string message = message_of([&] { init(comm, {}, options); });
      EXPECT_EQ(message.find('\n'), std::string::npos);
      EXPECT_THAT(message, ::testing::AllOf(::testing::HasSubstr("'worker2'"),
                                            ::testing::HasSubstr("for '" + peer + "'")));
      if (comm.rank() == 0) text = message;
    });
    return text;
  };
  EXPECT_THAT(said("worker9"), ::testing::HasSubstr("has no taker: no rank has that name"));
  EXPECT_THAT(said("worker1"), ::testing::HasSubstr(" device cuda:"));
  EXPECT_THAT(said("worker1", at::kCPU),
              ::testing::HasSubstr("has cpu, which is no device with a number"));
}

}  // namespace
}  // namespace lockstep::inline v0::rpc
