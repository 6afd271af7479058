#include "lockstep/comm/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::bootstrap_test {
namespace {

using ::testing::HasSubstr;
using Kind = Meeting::Kind;

EnvLookup environment(std::map<std::string, std::string, std::less<>> values) {
  return [values = std::move(values)](std::string_view name) -> std::optional<std::string> {
    const auto it = values.find(name);
    if (it == values.end()) return std::nullopt;
    return it->second;
  };
}

std::string refusal(const InitOptions& options, const EnvLookup& env = environment({})) {
  try {
    decide_meeting(options, env);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

TEST(Bootstrap, EveryLauncherHasItsMeeting) {
  EXPECT_EQ(decide_meeting({}, environment({})).kind, Kind::kAlone);

  const Meeting agent = decide_meeting({}, environment({{"LOCKSTEP_STORE", "127.0.0.1:4000"},
                                                        {"RANK", "1"},
                                                        {"WORLD_SIZE", "2"},
                                                        {"LOCAL_RANK", "1"},
                                                        {"LOCAL_WORLD_SIZE", "2"}}));
  EXPECT_EQ(agent.kind, Kind::kAgent);
  EXPECT_EQ(agent.address.to_string(), "127.0.0.1:4000");
  EXPECT_EQ(agent.topology.rank, 1);
  EXPECT_TRUE(agent.topology_known);

  std::map<std::string, std::string, std::less<>> torchrun{
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_RUN_ID", "abc"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  const Meeting torch = decide_meeting({}, environment(torchrun));
  EXPECT_EQ(torch.kind, Kind::kTorch);
  EXPECT_TRUE(torch.torch_agent_store);
  EXPECT_EQ(torch.key_prefix, "lockstep/abc/0");

  const Meeting mpi = decide_meeting({}, environment({{"OMPI_COMM_WORLD_RANK", "0"},
                                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                      {"PMIX_SERVER_TMPDIR", "/tmp/session"},
                                                      {"PMIX_NAMESPACE", "7"}}));
  EXPECT_EQ(mpi.kind, Kind::kFile);
  EXPECT_EQ(mpi.path, "/tmp/session/lockstep-7");
}

TEST(Bootstrap, MethodsWithoutALauncher) {
  const Meeting tcp = decide_meeting(
      {.init_method = "tcp://10.0.0.1:2345", .rank = 1, .world_size = 3}, environment({}));
  EXPECT_EQ(tcp.kind, Kind::kRankZero);
  EXPECT_EQ(tcp.address.port, 2345);
  EXPECT_FALSE(tcp.topology_known);
  const Meeting file =
      decide_meeting({.init_method = "file:///tmp/x", .rank = 0, .world_size = 1}, environment({}));
  EXPECT_EQ(file.path, "/tmp/x");
}

TEST(Bootstrap, MistakesAreNamed) {
  EXPECT_THAT(refusal({.init_method = "udp://x"}), HasSubstr("init_method 'udp://x' is not known"));
  EXPECT_THAT(refusal({.init_method = "tcp://h:1"}), HasSubstr("needs .rank and .world_size"));
  EXPECT_THAT(refusal({.init_method = "tcp://h", .rank = 0, .world_size = 2}),
              HasSubstr("'h' is not an address"));
  EXPECT_THAT(refusal({.init_method = "tcp://h:0", .rank = 0, .world_size = 2}),
              HasSubstr("port 0"));
  EXPECT_THAT(refusal({.init_method = "file:///tmp/x", .rank = 2, .world_size = 2}),
              HasSubstr("rank 2 of world_size 2"));
  EXPECT_THAT(refusal({.world_size = 4}), HasSubstr("lockstep run --nproc-per-node 4"));
  EXPECT_THAT(refusal({}, environment({{"RANK", "5"},
                                       {"WORLD_SIZE", "2"},
                                       {"MASTER_ADDR", "a"},
                                       {"MASTER_PORT", "1"}})),
              HasSubstr("RANK=5"));
}

TEST(Bootstrap, TcpNeedsASecret) {
  const InitOptions options{.init_method = "tcp://127.0.0.1:2345", .rank = 1, .world_size = 2};
  const EnvLookup env = environment({});
  try {
    open_store(decide_meeting(options, env), options, env, Deadline::seconds(1));
    FAIL() << "no InvalidArgument";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("LOCKSTEP_SECRET"));
  }
}

TEST(Bootstrap, TopologyIsFoundFromTheHosts) {
  HashStore store;
  std::thread other([&] { find_topology(store, 0, 2, Deadline::seconds(5)); });
  const Topology topology = find_topology(store, 1, 2, Deadline::seconds(5));
  other.join();
  EXPECT_EQ(topology.local_rank, 1);
  EXPECT_EQ(topology.local_size, 2);
  EXPECT_EQ(topology.node_rank, 0);
  HashStore lonely;
  EXPECT_THROW(find_topology(lonely, 0, 2, Deadline::seconds(0.05)), Timeout);
}

TEST(Bootstrap, RankZeroLeavesTheStoreLast) {
  HashStore store;
  std::atomic<bool> left{false};
  std::thread rank_zero([&] {
    leave_store(store, 0, 3, Deadline::seconds(5));
    left = true;
  });
  leave_store(store, 1, 3, Deadline::seconds(5));
  EXPECT_FALSE(left);
  leave_store(store, 2, 3, Deadline::seconds(5));
  rank_zero.join();
  EXPECT_TRUE(left);
  EXPECT_THROW(leave_store(store, 0, 4, Deadline::seconds(0.05)), Timeout);

  const Secret secret = Secret::generate();
  auto server = std::make_unique<TcpStoreServer>(HostPort{"127.0.0.1", 0}, secret);
  TcpStore orphan(server->address(), secret, Deadline::seconds(5));
  server.reset();
  EXPECT_NO_THROW(leave_store(orphan, 1, 2, Deadline::seconds(5)));
}

}  // namespace
}  // namespace lockstep::bootstrap_test
