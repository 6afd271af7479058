#include "lockstep/comm/init.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::init_mp_test {
namespace {

void run_suite(Communicator& comm, const testing::SuiteOptions& options) {
  const testing::SuiteReport report = testing::run_operation_suite(comm, options);
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  EXPECT_GT(report.checked, 500);
}

struct Group {
  const char* backend;
  int size;
};

class ProcessOperations : public ::testing::TestWithParam<Group> {};

TEST_P(ProcessOperations, AgreeWithTheOracle) {
  testing::expect_ranks(
      GetParam().size, [](Communicator& comm) { run_suite(comm, {.every_root = comm.size() < 4}); },
      {.backend = GetParam().backend});
}

INSTANTIATE_TEST_SUITE_P(Groups, ProcessOperations,
                         ::testing::Values(Group{"shm", 2}, Group{"shm", 3}, Group{"shm", 4},
                                           Group{"tcp", 2}, Group{"tcp", 3}, Group{"gloo", 3}),
                         [](const auto& info) {
                           return std::string(info.param.backend) + std::to_string(info.param.size);
                         });

// Where ctest runs the program in shards, a rank would not find its case in any of them.
TEST(Init, RanksAreNotDealtOutWithTheCases) {
  EXPECT_EQ(std::getenv("GTEST_TOTAL_SHARDS"), nullptr);
  testing::expect_lone_ranks(1, [] { EXPECT_EQ(std::getenv("GTEST_SHARD_INDEX"), nullptr); });
}

TEST(Init, SecondCallMeetsTheOthersSecond) {
  testing::expect_ranks(2, [](Communicator& comm) {
    Communicator again = init({.backend = "shm"});
    const at::Tensor t = at::full({3}, 1.0);
    again.all_reduce(t);
    comm.all_reduce(t);
    EXPECT_EQ(t.sum().item<double>(), 12.0);
  });
}

void expect_sum_of_ranks(Communicator& comm) {
  const at::Tensor t = at::full({100}, comm.rank() + 1.0);
  comm.all_reduce(t);
  EXPECT_EQ(t[99].item<double>(), comm.size() * (comm.size() + 1) / 2.0);
}

TEST(Init, NcclJoinsTheDevicesOrSaysWhatIsMissing) {
  testing::expect_ranks(2, [](Communicator&) {
    try {
      Communicator comm = init({.backend = "nccl"});
      EXPECT_TRUE(comm.device().is_cuda());
      expect_sum_of_ranks(comm);
    } catch (const LaunchError& error) {
      EXPECT_EQ(std::string(error.what()).rfind("backend nccl", 0), 0u) << error.what();
    }
  });
}

// A port of rank 0 that was free a moment ago, and that all ranks know.
int agree_on_port(Communicator& comm) {
  const at::Tensor port = at::zeros({1}, at::kInt);
  if (comm.rank() == 0) port.fill_(local_address(listen_tcp({"127.0.0.1", 0}).get()).port);
  comm.broadcast(port, 0);
  return port.item<int>();
}

TEST(Init, JoinsByTcpAndByFileWithoutALauncher) {
  testing::expect_ranks(3, [](Communicator& comm) {
    for (const char* backend : {"shm", "tcp", "gloo"}) {
      Communicator tcp =
          init({.backend = backend,
                .init_method = "tcp://127.0.0.1:" + std::to_string(agree_on_port(comm)),
                .rank = comm.rank(),
                .world_size = comm.size(),
                .secret = "only us"});
      EXPECT_EQ(tcp.capabilities().backend, backend);
      EXPECT_EQ(tcp.local_rank(), comm.rank());
      EXPECT_EQ(tcp.local_size(), 3);
      expect_sum_of_ranks(tcp);
    }
    const auto path = std::filesystem::temp_directory_path() /
                      ("lockstep-init-test-" + std::to_string(::getppid()));
    Communicator file = init(
        {.init_method = "file://" + path.string(), .rank = comm.rank(), .world_size = comm.size()});
    expect_sum_of_ranks(file);
    if (comm.rank() == 0) std::filesystem::remove(path);
  });
}

// The environment has torchrun's variables and none of Lockstep's: rank 0 serves PyTorch's store at
// MASTER_ADDR:MASTER_PORT.
TEST(Init, JoinsThroughTorchrunsEnvironment) {
  testing::expect_ranks(2, [](Communicator& comm) {
    comm.barrier();
    ::unsetenv("LOCKSTEP_STORE");
    ::unsetenv("LOCKSTEP_SECRET_FD");
    Communicator torch = init();
    EXPECT_EQ(torch.capabilities().backend, "shm");
    EXPECT_EQ(torch.rank(), comm.rank());
    expect_sum_of_ranks(torch);
  });
}

TEST(Init, AWrongSecretIsRefused) {
  testing::expect_ranks(2, [](Communicator& comm) {
    const int port = agree_on_port(comm);
    std::string text = "no exception";
    try {
      init({.init_method = "tcp://127.0.0.1:" + std::to_string(port),
            .rank = comm.rank(),
            .world_size = comm.size(),
            .timeout = std::chrono::seconds(3),
            .secret = comm.rank() == 0 ? "right" : "wrong"});
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_NE(text.find(comm.rank() == 0 ? "rank 1" : "secret"), std::string::npos) << text;
  });
}

// As when a launcher sends the variable to a host of another architecture: all ranks learn of it
// before there is a communicator.
TEST(Init, AnInstructionSetThatOneHostLacksIsRefusedOnAll) {
#if defined(__aarch64__)
  constexpr const char* kOther = "avx2";
#else
  constexpr const char* kOther = "neon";
#endif
  testing::expect_lone_ranks(2, [] {
    const bool other = std::string(std::getenv("RANK")) == "1";
    if (other) ::setenv("LOCKSTEP_CPU_CAPABILITY", kOther, 1);
    const std::string line = std::string("LOCKSTEP_CPU_CAPABILITY is '") + kOther + "'";
    const auto start = std::chrono::steady_clock::now();
    std::string text = "no exception";
    try {
      init({.backend = "shm"});
    } catch (const InvalidArgument& error) {
      text = error.what();
      EXPECT_TRUE(other) << text;
      EXPECT_EQ(text.rfind(line, 0), 0u) << text;
    } catch (const PeerLost& error) {
      text = error.what();
      EXPECT_FALSE(other) << text;
      EXPECT_EQ(error.rank(), 1);
    }
    EXPECT_NE(text.find(line), std::string::npos) << text;
    EXPECT_NE(text.find("on host "), std::string::npos) << text;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  });
}

// The survivors' error, and its delay, when a rank dies by SIGKILL in the middle of a collective.
void expect_peer_lost(const std::string& backend) {
  const auto start = std::chrono::steady_clock::now();
  const testing::RankResult result = testing::run_ranks(
      3,
      [](Communicator& comm) {
        const at::Tensor t = at::zeros({1000});
        comm.all_reduce(t);
        if (comm.rank() == 1) ::kill(::getpid(), SIGKILL);
        try {
          while (true) comm.all_reduce(t);
        } catch (const PeerLost&) {
          // The agent must not wait for this.
          std::this_thread::sleep_for(std::chrono::seconds(20));
        }
      },
      testing::gtest_point({.backend = backend}));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(result.launch.exit_code, 1);
  EXPECT_FALSE(result.timed_out);
  ASSERT_TRUE(result.launch.failure.has_value());
  EXPECT_EQ(result.launch.failure->rank, 1);
  EXPECT_EQ(result.launch.failure->signal, SIGKILL);
  EXPECT_NE(result.report.find("all_reduce sum float32 x 1000"), std::string::npos)
      << result.report;
  EXPECT_LT(seconds, 15);
}

TEST(Failure, KilledRankIsNamedWithItsLastCollectiveShm) {
  expect_peer_lost("shm");
}
TEST(Failure, KilledRankIsNamedWithItsLastCollectiveTcp) {
  expect_peer_lost("tcp");
}
TEST(Failure, KilledRankIsNamedWithItsLastCollectiveGloo) {
  expect_peer_lost("gloo");
}

TEST(Failure, SurvivorsGetPeerLostSoon) {
  const testing::RankResult result = testing::run_ranks(
      3,
      [](Communicator& comm) {
        const at::Tensor t = at::zeros({10});
        comm.all_reduce(t);
        if (comm.rank() == 2) {
          // The rank left silently, but the agent still sees the process: only the life line tells.
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          ::_exit(0);
        }
        const auto start = std::chrono::steady_clock::now();
        try {
          comm.all_reduce(t);
          ADD_FAILURE() << "no PeerLost";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.rank(), 2);
          EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
        }
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        EXPECT_LT(seconds, 2.0);
        testing::throw_if_failed();
      },
      testing::gtest_point());
  EXPECT_EQ(result.launch.exit_code, 0) << result.report;
}

TEST(Failure, NothingIsLeftInDevShm) {
  const auto count = [] {
    return std::distance(std::filesystem::directory_iterator("/dev/shm"),
                         std::filesystem::directory_iterator());
  };
  const auto before = count();
  testing::run_ranks(
      2,
      [](Communicator& comm) {
        comm.barrier();
        ::kill(::getpid(), SIGKILL);
      },
      testing::gtest_point());
  EXPECT_EQ(count(), before);
}

TEST(Failure, AHangPrintsTheStacksAndEnds) {
  const testing::RankResult result = testing::run_ranks(
      2,
      [](Communicator& comm) {
        if (comm.rank() == 0) comm.barrier();
        std::this_thread::sleep_for(std::chrono::seconds(60));
      },
      testing::gtest_point({.deadline = std::chrono::seconds(4)}));
  EXPECT_TRUE(result.timed_out);
  EXPECT_NE(result.launch.exit_code, 0);
}

TEST(Failure, DifferentCollectivesAreNamedOnAllRanks) {
  testing::expect_ranks(3, [](Communicator& comm) {
    const at::Tensor t = at::zeros({8});
    comm.all_reduce(t);
    try {
      if (comm.rank() == 1)
        comm.all_gather(t);
      else
        comm.all_reduce(t);
      comm.barrier();
      ADD_FAILURE() << "no Mismatch";
    } catch (const Mismatch& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("ranks 0, 2: #2 all_reduce sum float32 x 8 at init_mp_test.cpp"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("rank 1: #2 all_gather float32 x 24 at init_mp_test.cpp"),
                std::string::npos)
          << text;
    }
  });
}

}  // namespace
}  // namespace lockstep::inline v0::init_mp_test
