#include "lockstep/comm/engines/mpi/mpi_backend.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/comm/opposite_orders_test.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/internal/mpi_test_support.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/long_tests.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::mpi_backend_mp_test {
namespace {

struct Outcome {
  ExitStatus status;
  double seconds = 0;
  std::string output;
  std::vector<std::string> told;  // the texts given to tell(), sorted
};

using launch::MpiFamily;

bool inside_mpirun() {
  return launch::mpi_launcher(process_env()) != nullptr;
}

// A rank's report to the process that runs mpirun: a file, since mpirun mixes its ranks' output.
constexpr const char* kTold = "LOCKSTEP_TEST_TOLD";
void tell(const std::string& what) {
  std::ofstream(std::filesystem::path(process_env()(kTold).value()) / what);
}

// Runs the current test again, on `size` ranks of the family's mpirun, which must be installed.
Outcome run_under_mpirun(MpiFamily family, int size, std::map<std::string, std::string> env = {}) {
  const TestDirectory told;
  env[kTold] = told.path().string();
  constexpr auto kWhole = std::chrono::seconds(120);
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  SubprocessOptions options = launch::mpirun_process(
      *launch::find_mpirun_of(family),
      {.nproc = size,
       .command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                   std::string("--gtest_filter=") + info->test_suite_name() + "." + info->name(),
                   "--gtest_brief=1", "--gtest_catch_exceptions=0"},
       .env = env,
       .no_input = true});
  const UniqueFd silent = launch::silent_stdin();
  options.stdin_fd = silent.get();
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
    outcome.status = mpirun.wait(Deadline::after(kWhole));
  } catch (const Timeout& error) {
    outcome.status.exit_code = -1;
    outcome.output += error.what();
    mpirun.signal(SIGTERM);  // mpirun ends its ranks
    std::this_thread::sleep_for(std::chrono::seconds(1));
    mpirun.signal_group(SIGKILL);
  }
  reader.join();
  outcome.told = told.names();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

#define LOCKSTEP_NEEDS_MPIRUN(family)                                                         \
  if (const std::string why = launch::lacks_mpirun(family); !why.empty() && !inside_mpirun()) \
  GTEST_SKIP() << why

// Ends a rank's process when one of its expectations failed: mpirun then fails as a whole.
void end_rank() {
  if (::testing::Test::HasFailure()) std::exit(1);
}

// Outside of mpirun: runs the current test under it, where it must pass. Returns false inside.
bool passes_under_mpirun(MpiFamily family, int size) {
  if (inside_mpirun()) return false;
  const Outcome outcome = run_under_mpirun(family, size);
  EXPECT_TRUE(outcome.status.ok()) << outcome.output;
  return true;
}

// MPICH's ranks never yield while they wait: with more ranks than cores a test takes minutes, so it
// runs with the long ones.
std::vector<std::tuple<MpiFamily, int>> groups_of_operations() {
  std::vector<std::tuple<MpiFamily, int>> all;
  for (const MpiFamily family : launch::kMpiFamilies) {
    const bool all_sizes = family == MpiFamily::kOpenMpi || testing::long_tests();
    for (int size = 1; size <= (all_sizes ? 4 : 2); ++size) all.emplace_back(family, size);
  }
  return all;
}

class MpiOperations : public ::testing::TestWithParam<std::tuple<MpiFamily, int>> {};

TEST_P(MpiOperations, AgreeWithTheOracle) {
  const auto [family, size] = GetParam();
  LOCKSTEP_NEEDS_MPIRUN(family);
  if (passes_under_mpirun(family, size)) return;
  Communicator comm = init({.backend = "mpi", .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(comm.capabilities().backend, "mpi");
  const testing::SuiteReport report =
      testing::run_operation_suite(comm, {.every_root = comm.size() < 4});
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  EXPECT_GT(report.checked, 500);
  end_rank();
}

INSTANTIATE_TEST_SUITE_P(Sizes, MpiOperations, ::testing::ValuesIn(groups_of_operations()),
                         [](const auto& info) {
                           return launch::name_of(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

class MpiBackend : public ::testing::TestWithParam<MpiFamily> {};
INSTANTIATE_TEST_SUITE_P(Families, MpiBackend, ::testing::ValuesIn(launch::kMpiFamilies),
                         [](const auto& info) { return launch::name_of(info.param); });

// The test uses init() as usual; only the ranks come from mpirun.
TEST_P(MpiBackend, InitTakesItsPlaceFromMpirun) {
  LOCKSTEP_NEEDS_MPIRUN(GetParam());
  if (passes_under_mpirun(GetParam(), 3)) return;
  const launch::MpiLauncher* launcher = launch::mpi_launcher(process_env());
  EXPECT_EQ(launcher->family, GetParam());
  Communicator comm = init();
  EXPECT_EQ(comm.capabilities().backend, "shm");
  EXPECT_EQ(comm.rank(), env_int(process_env(), launcher->rank));
  EXPECT_EQ(comm.size(), 3);
  const at::Tensor t = at::full({5}, comm.rank() + 1);
  comm.all_reduce(t);
  EXPECT_EQ(t.sum().item<int64_t>(), 30);
  end_rank();
}

// A library that does not understand the launcher makes every rank a job of its own.
TEST_P(MpiBackend, AnotherMpisLibraryIsToldApart) {
  for (const MpiFamily family : launch::kMpiFamilies) LOCKSTEP_NEEDS_MPIRUN(family);
  if (!inside_mpirun()) {
    const MpiFamily other =
        GetParam() == MpiFamily::kOpenMpi ? MpiFamily::kMpich : MpiFamily::kOpenMpi;
    const Outcome outcome = run_under_mpirun(
        GetParam(), 2, {{"LOCKSTEP_MPI_LIBRARY", launch::mpi_library_files(other).back()}});
    EXPECT_EQ(outcome.told, (std::vector<std::string>{"rank 0", "rank 1"})) << outcome.output;
    return;
  }
  try {
    init({.backend = "mpi"});
  } catch (const Mismatch& error) {
    const std::string text = error.what();
    const std::string rank = text.substr(8, 6);  // of "this is rank 1 of 2, ..."
    EXPECT_NE(text.find(" it is alone: that library does not understand"), std::string::npos);
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    if (!::testing::Test::HasFailure()) tell(rank);
  }
}

TEST_P(MpiBackend, GroupsMayBeWaitedInInOppositeOrders) {
  LOCKSTEP_NEEDS_MPIRUN(GetParam());
  if (passes_under_mpirun(GetParam(), 2)) return;
  Communicator comm = init({.backend = "mpi", .timeout = std::chrono::seconds(20)});
  wait_in_opposite_orders(comm);
  end_rank();
}

TEST_P(MpiBackend, DifferentOrdersOfGroupsAreNamed) {
  LOCKSTEP_NEEDS_MPIRUN(GetParam());
  if (!inside_mpirun()) {
    // MPI cannot cancel a collective, so the job ends.
    const Outcome outcome = run_under_mpirun(GetParam(), 3);
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_LT(outcome.seconds, 25);
    EXPECT_THAT(outcome.output, names_different_orders());
    return;
  }
  Communicator comm = init({.backend = "mpi", .timeout = std::chrono::seconds(60)});
  Communicator a = comm.duplicate();
  std::optional<Communicator> b = comm.subgroup({0, 1});
  std::cerr << error_of_different_orders(a, b) << std::endl;
  std::exit(3);
}

TEST_P(MpiBackend, SeveralCommunicatorsOfOneJobBesideOtherBackends) {
  LOCKSTEP_NEEDS_MPIRUN(GetParam());
  if (passes_under_mpirun(GetParam(), 3)) return;
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

// The faults that mpirun leaves to the ranks: it ends the job itself when a rank dies, but does not
// see a stopped one.
std::vector<std::tuple<MpiFamily, testing::Fault>> faults_of_calls() {
  std::vector<std::tuple<MpiFamily, testing::Fault>> all;
  for (const MpiFamily family : launch::kMpiFamilies) {
    if (family != MpiFamily::kOpenMpi && !testing::long_tests()) continue;  // three ranks, as above
    for (const testing::Fault& fault : testing::faults()) {
      if (!fault.needs_process || fault.end == SIGSTOP) all.emplace_back(family, fault);
    }
  }
  return all;
}

class MpiFaults : public ::testing::TestWithParam<std::tuple<MpiFamily, testing::Fault>> {};

TEST_P(MpiFaults, EveryRankGetsTheRightErrorInTime) {
  const auto& [family, fault] = GetParam();
  LOCKSTEP_NEEDS_MPIRUN(family);
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(family, testing::kFaultSize);
    EXPECT_EQ(outcome.told, (std::vector<std::string>{"as expected on all ranks"}))
        << outcome.output;
    EXPECT_LT(outcome.seconds, 30) << outcome.output;
    return;
  }
  // A second communicator, over shm, to wait for each other after the first one broke, among the
  // ranks that are not stopped then.
  Communicator all = init({.backend = "shm", .timeout = std::chrono::seconds(20)});
  const bool stops = fault.end == SIGSTOP;
  const at::Tensor pid = at::full({1}, static_cast<int64_t>(::getpid()), at::kLong);
  all.broadcast(pid, testing::kFaultyRank);
  Communicator after = *all.split(stops && all.rank() == testing::kFaultyRank ? 1 : 0);
  std::string wrong;
  {
    Communicator comm = init({.backend = "mpi", .timeout = testing::fault_timeout(fault)});
    wrong = testing::run_fault(comm, fault, {});
    EXPECT_EQ(wrong, "");
  }
  const at::Tensor good = at::full({1}, wrong.empty() ? 1 : 0);
  after.all_reduce(good);
  if (all.rank() != 0) return;
  if (good.item<int>() == after.size()) tell("as expected on all ranks");
  // mpirun would wait for the process.
  if (stops) ::kill(static_cast<pid_t>(pid.item<int64_t>()), SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(All, MpiFaults, ::testing::ValuesIn(faults_of_calls()),
                         [](const auto& info) {
                           return launch::name_of(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param).name;
                         });

// Open MPI's mpirun reports how the job's first rank ended; MPICH's reports one of the ranks, and
// if that is another one, its error has named the rank that it waited for.
bool names_the_end(MpiFamily family, const std::string& output, const char* open_mpi,
                   const char* mpich) {
  const auto has = [&](const char* text) { return output.find(text) != std::string::npos; };
  return family == MpiFamily::kOpenMpi ? has(open_mpi) : has(mpich) || has("needs rank 1 (pid ");
}

// The job ends soon, with a status other than 0 and the reason in its output.
TEST_P(MpiBackend, AKilledRankEndsTheJob) {
  LOCKSTEP_NEEDS_MPIRUN(GetParam());
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(GetParam(), 3);
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_LT(outcome.seconds, 10) << outcome.output;
    EXPECT_TRUE(names_the_end(GetParam(), outcome.output, "rank 1", "EXIT CODE: 9"))
        << outcome.output;
    return;
  }
  Communicator comm = init({.backend = "mpi"});
  comm.barrier();
  if (comm.rank() == 1) ::kill(::getpid(), SIGKILL);
  while (true) comm.all_reduce(at::zeros({1000}));
}

TEST_P(MpiBackend, ALateRankGivesATimeout) {
  LOCKSTEP_NEEDS_MPIRUN(GetParam());
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(GetParam(), 2);
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_NE(outcome.output.find("all_reduce sum float32 x 4"), std::string::npos)
        << outcome.output;
    EXPECT_NE(outcome.output.find("not arrived: rank 1 (pid "), std::string::npos)
        << outcome.output;
    EXPECT_LT(outcome.seconds, 20);
    return;
  }
  Communicator comm = init({.backend = "mpi", .timeout = std::chrono::seconds(4)});
  if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
  comm.all_reduce(at::zeros({4}));
}

// The message of a rank's exception is mpirun's whole output; the job must not wait for the others.
TEST_P(MpiBackend, AnExceptionOfOneRankEndsTheJob) {
  LOCKSTEP_NEEDS_MPIRUN(GetParam());
  if (!inside_mpirun()) {
    const Outcome outcome = run_under_mpirun(GetParam(), 2);
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_LT(outcome.seconds, 10) << outcome.output;
    // MPICH's mpirun sometimes ends without a message, but with the rank's exit code.
    EXPECT_TRUE(names_the_end(GetParam(), outcome.output, "exit code", "EXIT CODE: 3") ||
                (GetParam() == MpiFamily::kMpich && outcome.status.exit_code == 3))
        << "exit code " << outcome.status.exit_code << ", signal " << outcome.status.signal << "\n"
        << outcome.output;
    return;
  }
  Communicator comm = init({.backend = "mpi"});
  comm.barrier();
  if (comm.rank() == 1) std::exit(3);
  comm.all_reduce(at::zeros({4}));
}

TEST(MpiLauncher, RanksOfAnotherLauncherAreToldToUseMpirun) {
  const testing::RankResult result =
      testing::run_ranks(2, [](Communicator&) {}, testing::gtest_point({.backend = "mpi"}));
  EXPECT_NE(result.launch.exit_code, 0);
  EXPECT_NE(result.report.find("use mpirun -n 2"), std::string::npos) << result.report;
}

}  // namespace
}  // namespace lockstep::inline v0::mpi_backend_mp_test
