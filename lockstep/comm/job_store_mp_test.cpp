// The job's store in programs with roles, and init() in a rank that was restarted alone, with real
// processes.
#include "lockstep/comm/job_store.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "lockstep/comm/groups/torch_store.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::job_store_mp_test {
namespace {

using ::testing::HasSubstr;

// Runs `fn` as each rank of the roles; all of them must end successfully.
void expect_roles(const std::vector<launch::Role>& roles, const std::function<void()>& fn) {
  const testing::RankOptions point = testing::gtest_point();
  launch::LaunchOptions options;
  options.roles = roles;
  const launch::LaunchResult result =
      launch::spawn(launch::rank_count(roles),
                    [&fn] {
                      fn();
                      testing::throw_if_failed();
                    },
                    options, {.name = point.name, .arguments = point.arguments});
  EXPECT_EQ(result.exit_code, 0);
}

const std::vector<launch::Role> kServerAndTrainers = {{.name = "ps", .ranks = 1, .restarts = 1},
                                                      {.name = "trainer", .ranks = 2}};

bool first_life() {
  return launch::read_job_environment(process_env()).own_restarts == 0;
}

Deadline soon() {
  return Deadline::seconds(30);
}

TEST(JobStore, ARestartedRankFindsWhatItLeftAndTheOthersFindIt) {
  expect_roles(kServerAndTrainers, [] {
    const launch::JobRole role = launch::job_role();
    const auto store = job_store(soon());
    if (role.name == "trainer") {
      EXPECT_EQ(store->get("answer", soon()), "from the second life");
      store->add("heard", 1);
      return;
    }
    if (first_life()) {
      store->set("state", "from the first life");
      ::raise(SIGKILL);
    }
    EXPECT_EQ(store->try_get("state"), "from the first life");
    store->set("answer", "from the second life");
  });
}

TEST(JobStore, ItsKeysAreNotThoseOfInit) {
  expect_roles({{.name = "a", .ranks = 2}}, [] {
    const auto store = job_store(soon());
    store->set("init/0", "not a number");
    store->set("world1/ready", "not a number");
    Communicator comm = init();
    comm.barrier();
  });
}

// The other ranks do not wait for the rank a second time, so it must not wait either.
TEST(JobStore, ARestartedRankThatHadJoinedIsRefusedAtOnceByInit) {
  expect_roles({{.name = "ps", .ranks = 1, .restarts = 1}, {.name = "trainer", .ranks = 2}}, [] {
    const auto store = job_store(soon());
    if (launch::job_role().name == "trainer") {
      Communicator comm = init();
      EXPECT_THAT(store->get("refused", soon()),
                  HasSubstr("init(): rank 0 was started again (restart 1) after it had called "
                            "init(), and cannot join the other ranks a second time"));
      return;
    }
    if (first_life()) {
      Communicator comm = init();
      ::raise(SIGKILL);
    }
    const auto begin = std::chrono::steady_clock::now();
    try {
      init();
      ADD_FAILURE() << "no InvalidArgument";
      store->set("refused", "no");
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      store->set("refused", error.what());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  });
}

TEST(JobStore, ARankThatDiedBeforeInitMayStillJoin) {
  expect_roles(kServerAndTrainers, [] {
    if (launch::job_role().name == "ps" && first_life()) ::raise(SIGKILL);
    Communicator comm = init();
    const at::Tensor sum = at::full({3}, comm.rank() + 1.0);
    comm.all_reduce(sum);
    EXPECT_EQ(sum[2].item<double>(), 6.0);
    Communicator again = init();  // in the same life
    again.barrier();
  });
}

TEST(JobStore, SurvivorsOfARoleWithRestartsGoOnInASmallerGroup) {
  expect_roles(kServerAndTrainers, [] {
    if (!first_life() && launch::job_role().name == "ps") return;
    Communicator comm = init({.timeout = std::chrono::seconds(20)});
    const at::Tensor sum = at::full({3}, 1.0);
    comm.all_reduce(sum);
    if (comm.rank() == 0) ::raise(SIGKILL);
    EXPECT_THROW(comm.all_reduce(sum), PeerLost);
    Communicator rest = comm.shrink(Deadline::seconds(20));
    EXPECT_EQ(rest.size(), 2);
    const at::Tensor again = at::full({3}, 1.0);
    rest.all_reduce(again);
    EXPECT_EQ(again[0].item<double>(), 2.0);
  });
}

// The environment has torchrun's variables and none of Lockstep's; rank 0 plays torchrun's agent.
TEST(JobStore, UnderTorchrunRankZeroServesIt) {
  expect_roles({{.name = "a", .ranks = 3}}, [] {
    ::unsetenv("LOCKSTEP_STORE");
    ::unsetenv("LOCKSTEP_SECRET_FD");
    ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    const launch::JobEnvironment job = launch::read_job_environment(process_env());
    TorchStore agent(job.master.value(), job.rank == 0, soon());
    const auto store = job_store(soon());
    store->set("here/" + std::to_string(job.rank), "1");
    Communicator comm = init();
    for (int r = 0; r < 3; ++r) EXPECT_EQ(store->get("here/" + std::to_string(r), soon()), "1");
    comm.barrier();
  });
}

TEST(JobStore, WhereNobodyServesOneItSaysSo) {
  expect_roles({{.name = "a", .ranks = 1}}, [] {
    for (const char* name : {"LOCKSTEP_STORE", "RANK", "WORLD_SIZE"}) ::unsetenv(name);
    EXPECT_EQ(job_store(soon())->try_get("nothing"), std::nullopt) << "alone";
    const auto expect_refusal = [] {
      try {
        job_store(soon());
        ADD_FAILURE() << "no InvalidArgument";
      } catch (const InvalidArgument& error) {
        EXPECT_THAT(error.what(), HasSubstr("start the program by lockstep run"));
      }
    };
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", "29500", 1);
    ::setenv("RANK", "0", 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("LOCAL_WORLD_SIZE", "2", 1);
    expect_refusal();
    for (const char* name : {"RANK", "WORLD_SIZE"}) ::unsetenv(name);
    ::setenv("PMI_RANK", "0", 1);
    ::setenv("PMI_SIZE", "2", 1);
    ::setenv("MPI_LOCALRANKID", "0", 1);
    ::setenv("MPI_LOCALNRANKS", "2", 1);
    expect_refusal();
  });
}

}  // namespace
}  // namespace lockstep::inline v0::job_store_mp_test
