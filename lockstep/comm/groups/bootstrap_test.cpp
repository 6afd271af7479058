#include "lockstep/comm/groups/bootstrap.h"

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

namespace lockstep::inline v0::bootstrap_test {
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

std::map<std::string, std::string, std::less<>> rank_of_mpirun_on_two_hosts() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_SERVER_TMPDIR", "/tmp/s"},    {"PMIX_NAMESPACE", "7"}};
}

TEST(Bootstrap, MpirunOnSeveralHostsMeetsThroughMpiUnlessToldWhere) {
  auto variables = rank_of_mpirun_on_two_hosts();
  const Meeting mpi = decide_meeting({}, environment(variables));
  EXPECT_EQ(mpi.kind, Kind::kMpi);
  EXPECT_FALSE(mpi.topology_known) << "mpirun --map-by node";
  variables["MASTER_ADDR"] = "10.0.0.1";
  variables["MASTER_PORT"] = "29500";
  EXPECT_EQ(decide_meeting({}, environment(variables)).kind, Kind::kRankZero);
}

// MPICH's mpirun has no directory per job.
TEST(Bootstrap, MpichsMpirunMeetsThroughMpi) {
  std::map<std::string, std::string, std::less<>> variables = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  const Meeting one_host = decide_meeting({}, environment(variables));
  EXPECT_EQ(one_host.kind, Kind::kMpi);
  EXPECT_TRUE(one_host.topology_known);
  variables["MPI_LOCALRANKID"] = "0";
  variables["MPI_LOCALNRANKS"] = "1";
  EXPECT_FALSE(decide_meeting({}, environment(variables)).topology_known);
  variables["PMI_SIZE"] = variables["PMI_RANK"] = "1";
  variables["PMI_RANK"] = "0";
  EXPECT_EQ(decide_meeting({}, environment(variables)).kind, Kind::kAlone);
}

// No mpirun started this process; a missing Open MPI gives the same result.
TEST(Bootstrap, WithoutMpiTheAdviceIsToSayWhere) {
  if (process_env()("OMPI_COMM_WORLD_SIZE") || process_env()("PMIX_RANK") ||
      process_env()("PMI_RANK")) {
    GTEST_SKIP() << "runs under mpirun or srun itself";
  }
  const EnvLookup env = environment(rank_of_mpirun_on_two_hosts());
  try {
    open_store(decide_meeting({}, env), {}, env, Deadline::seconds(5));
    FAIL() << "no InvalidArgument";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_THAT(text, HasSubstr("set MASTER_ADDR and MASTER_PORT"));
    EXPECT_THAT(text, HasSubstr("LOCKSTEP_SECRET_FILE"));
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(Bootstrap, RankZeroOffersWhatOthersMayReach) {
  const std::vector<InterfaceAddress> all = {{"lo", "127.0.0.1", true},
                                             {"docker0", "172.17.0.1", false},
                                             {"eth0", "10.0.0.5", false},
                                             {"eth0", "fd00::5", false}};
  using Addresses = std::vector<std::string>;
  const Offer any = make_offer(all, "", false);
  EXPECT_EQ(any.listen, "0.0.0.0");
  EXPECT_EQ(any.addresses, (Addresses{"10.0.0.5", "172.17.0.1"}));
  EXPECT_EQ(make_offer(all, "eth0", false).listen, "10.0.0.5");
  EXPECT_EQ(make_offer(all, "fd00::5", false).addresses, Addresses{"fd00::5"});
  EXPECT_EQ(make_offer({{"eth0", "fd00::5", false}}, "", false).listen, "::");
  EXPECT_EQ(make_offer(all, "", true).addresses, Addresses{"127.0.0.1"});
  EXPECT_THROW(make_offer({{"lo", "127.0.0.1", true}}, "", false), InvalidArgument);
  EXPECT_THROW(make_offer(all, "eth7", false), InvalidArgument);
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

// A connection that can never succeed is not retried until the deadline.
TEST(Bootstrap, AStoreThatIsNeverReachedIsToldAtOnce) {
  const Secret secret = Secret::generate();
  const HostPort of_no_interface{"fe80::1", 9}, nobody{"127.0.0.1", 1};
  EXPECT_THROW(reach_store({of_no_interface}, secret, Deadline::seconds(600)), SystemError);
  EXPECT_THROW(reach_store({of_no_interface, nobody}, secret, Deadline::seconds(0.2)), Timeout);
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

TEST(Init, ABackendThatIsNotThereGetsOneLineThatSaysWhatIs) {
  const auto refused = [](const std::string& backend) -> std::string {
    try {
      init({.backend = backend});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refused("teleport"), HasSubstr("backend 'teleport' is not known; there are local"));
  for (const char* name : {"hierarchical:teleport", "hierarchical:", "hierarchical:shm"}) {
    EXPECT_THAT(refused(name), HasSubstr(std::string("backend '") + name + "': between its hosts"));
    EXPECT_THAT(refused(name), HasSubstr("hierarchical:mpi"));
  }
  // One process alone needs no hosts.
  EXPECT_EQ(refused("hierarchical:tcp"), "");
  EXPECT_EQ(refused("hierarchical:gloo"), "");
}

}  // namespace
}  // namespace lockstep::inline v0::bootstrap_test
