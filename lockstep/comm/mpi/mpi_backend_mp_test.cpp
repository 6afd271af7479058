#include "lockstep/comm/mpi/mpi_backend.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <thread>

#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::mpi_backend_mp_test {
namespace {

struct Outcome {
  ExitStatus status;
  double seconds = 0;
  std::string output;
};

bool inside_mpirun() {
  return process_env()("OMPI_COMM_WORLD_SIZE").has_value();
}

bool have_mpirun() {
  try {
    find_program("mpirun");
    return true;
  } catch (const LaunchError&) {
    return false;
  }
}

// Runs the current test again, on `size` ranks of mpirun. `whole`: each rank may take so long.
Outcome run_under_mpirun(int size, std::chrono::seconds whole = std::chrono::seconds(120)) {
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  SubprocessOptions options = launch::mpirun_process(
      size, {std::filesystem::read_symlink("/proc/self/exe").string(),
             std::string("--gtest_filter=") + info->test_suite_name() + "." + info->name(),
             "--gtest_brief=1", "--gtest_catch_exceptions=0"});
  options.own_session = true;
  Pipe pipe = make_pipe();
  options.stdout_fd = options.stderr_fd = pipe.write.get();
  const auto start = std::chrono::steady_clock::now();
  Subprocess mpirun(options);
  pipe.write.reset();
  Outcome outcome;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(pipe.read.get(), buffer, sizeof buffer)) > 0;)
      outcome.output.append(buffer, static_cast<size_t>(n));
  });
  try {
    outcome.status = mpirun.wait(Deadline::after(whole));
  } catch (const Timeout& error) {
    outcome.status.exit_code = -1;
    outcome.output += error.what();
    mpirun.signal(SIGTERM);  // it ends its ranks
    std::this_thread::sleep_for(std::chrono::seconds(1));
    mpirun.signal_group(SIGKILL);
  }
  reader.join();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

#define LOCKSTEP_NEEDS_MPIRUN()                                                   \
  if (!inside_mpirun() && !have_mpirun()) {                                       \
    GTEST_SKIP() << "no mpirun: apt install openmpi-bin to run the tests of mpi"; \
  }

// Ends a rank's process when an expectation of it failed: mpirun then fails as a whole.
void end_rank() {
  if (::testing::Test::HasFailure()) std::exit(1);
}

class MpiOperations : public ::testing::TestWithParam<int> {};

TEST_P(MpiOperations, AgreeWithTheOracle) {
  LOCKSTEP_NEEDS_MPIRUN();
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(GetParam());
    EXPECT_TRUE(outcome.status.ok()) << outcome.output;
    return;
  }
  Communicator comm = init({.backend = "mpi", .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(comm.capabilities().backend, "mpi");
  const testing::SuiteReport report =
      testing::run_operation_suite(comm, {.every_root = comm.size() < 4});
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  EXPECT_GT(report.checked, 500);
  end_rank();
}

INSTANTIATE_TEST_SUITE_P(Sizes, MpiOperations, ::testing::Values(1, 2, 3, 4));

TEST(MpiBackend, SeveralCommunicatorsOfOneJobBesideOtherBackends) {
  LOCKSTEP_NEEDS_MPIRUN();
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(3);
    EXPECT_TRUE(outcome.status.ok()) << outcome.output;
    return;
  }
  Communicator first = init({.backend = "mpi"});
  Communicator shm = init({.backend = "shm"});
  {
    Communicator second = init({.backend = "mpi"});
    const at::Tensor a = at::full({5}, 1.0);
    const at::Tensor b = at::full({7}, 2.0);
    Work one = first.iall_reduce(a);
    Work other = second.iall_reduce(b);
    other.wait();
    one.wait();
    EXPECT_EQ(a.sum().item<double>(), 15.0);
    EXPECT_EQ(b.sum().item<double>(), 42.0);
  }
  const at::Tensor c = at::full({3}, 1.0);
  shm.all_reduce(c);
  first.all_reduce(c);
  EXPECT_EQ(c.sum().item<double>(), 27.0);
  end_rank();
}

// What mpirun leaves to the ranks: it ends the job itself when one dies. A stopped one it does not
// see.
std::vector<testing::Fault> faults_of_calls() {
  std::vector<testing::Fault> all;
  for (const testing::Fault& fault : testing::faults()) {
    if (!fault.needs_process || fault.end == SIGSTOP) all.push_back(fault);
  }
  return all;
}

class MpiFaults : public ::testing::TestWithParam<testing::Fault> {};

TEST_P(MpiFaults, EveryRankGetsTheRightErrorInTime) {
  LOCKSTEP_NEEDS_MPIRUN();
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(testing::kFaultSize);
    EXPECT_NE(outcome.output.find("as expected on all ranks"), std::string::npos) << outcome.output;
    EXPECT_LT(outcome.seconds, 30) << outcome.output;
    return;
  }
  // A second communicator, of shm, to wait for each other after the first one broke: of all ranks
  // that are not stopped then.
  Communicator all = init({.backend = "shm", .timeout = std::chrono::seconds(20)});
  const bool stops = GetParam().end == SIGSTOP;
  const at::Tensor pid = at::full({1}, static_cast<int64_t>(::getpid()), at::kLong);
  all.broadcast(pid, testing::kFaultyRank);
  Communicator after = *all.split(stops && all.rank() == testing::kFaultyRank ? 1 : 0);
  std::string wrong;
  {
    Communicator comm = init({.backend = "mpi", .timeout = testing::fault_timeout(GetParam())});
    wrong = testing::run_fault(comm, GetParam(), {});
    EXPECT_EQ(wrong, "");
  }
  const at::Tensor good = at::full({1}, wrong.empty() ? 1 : 0);
  after.all_reduce(good);
  if (all.rank() != 0) return;
  if (good.item<int>() == after.size()) std::cout << "as expected on all ranks" << std::endl;
  // mpirun would wait for it.
  if (stops) ::kill(static_cast<pid_t>(pid.item<int64_t>()), SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(All, MpiFaults, ::testing::ValuesIn(faults_of_calls()),
                         [](const auto& info) { return info.param.name; });

// The job ends soon, not with 0, and mpirun says which rank it was.
TEST(MpiBackend, AKilledRankEndsTheJob) {
  LOCKSTEP_NEEDS_MPIRUN();
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(3);
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_LT(outcome.seconds, 10) << outcome.output;
    EXPECT_NE(outcome.output.find("rank 1"), std::string::npos) << outcome.output;
    return;
  }
  Communicator comm = init({.backend = "mpi"});
  comm.barrier();
  if (comm.rank() == 1) ::kill(::getpid(), SIGKILL);
  while (true) comm.all_reduce(at::zeros({1000}));
}

TEST(MpiBackend, ALateRankGivesATimeout) {
  LOCKSTEP_NEEDS_MPIRUN();
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(2);
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_NE(outcome.output.find("all_reduce sum float32 x 4"), std::string::npos)
        << outcome.output;
    EXPECT_NE(outcome.output.find("not arrived: rank 1 (pid "), std::string::npos)
        << outcome.output;
    EXPECT_LT(outcome.seconds, 20);
    return;
  }
  Communicator comm = init({.backend = "mpi", .timeout = std::chrono::seconds(1)});
  if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
  comm.all_reduce(at::zeros({4}));
}

// The message of a rank's exception is mpirun's whole output; the job must not wait for the others.
TEST(MpiBackend, AnExceptionOfOneRankEndsTheJob) {
  LOCKSTEP_NEEDS_MPIRUN();
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(2);
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_LT(outcome.seconds, 10) << outcome.output;
    EXPECT_NE(outcome.output.find("exit code"), std::string::npos) << outcome.output;
    return;
  }
  Communicator comm = init({.backend = "mpi"});
  comm.barrier();
  if (comm.rank() == 1) std::exit(3);
  comm.all_reduce(at::zeros({4}));
}

TEST(MpiBackend, RanksOfAnotherLauncherAreToldToUseMpirun) {
  const testing::RankResult result =
      testing::run_ranks(2, [](Communicator&) {}, testing::gtest_point({.backend = "mpi"}));
  EXPECT_NE(result.launch.exit_code, 0);
  EXPECT_NE(result.report.find("use mpirun -n 2"), std::string::npos) << result.report;
}

}  // namespace
}  // namespace lockstep::mpi_backend_mp_test
