// mpirun's flags with real processes: what a rank is bound to, where it runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lockstep/cli/cli_test_support.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/topology.h"

namespace lockstep::inline v0::cli {
namespace habits_mp_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using namespace cli_test_support;  // NOLINT: a test's own helpers

// What the kernel says that the rank may use, and its threads.
constexpr const char* kShowCpus =
    "echo $RANK $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) "
    "$OMP_NUM_THREADS";

std::string core_of(size_t rank) {
  const auto cores = launch::bound_cpus(launch::read_topology(allowed_cpus()),
                                        {.given = true, .overload = true}, 64);
  return launch::cpu_list(cores[rank].cpus);
}

TEST(LockstepRunHabits, ARankIsBoundToItsCoreAndHasOneThread) {
  ::unsetenv("OMP_NUM_THREADS");
  const Ended ended = lockstep({"run", "-n", "2", "--bind-to", "core:overload-allowed",
                                "--report-bindings", "/bin/sh", "-c", kShowCpus});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out),
              UnorderedElementsAre("0 " + core_of(0) + " 1", "1 " + core_of(1) + " 1"));
  EXPECT_THAT(lines_of(ended.err),
              UnorderedElementsAre("[lockstep] rank 0 is bound to processors " + core_of(0),
                                   "[lockstep] rank 1 is bound to processors " + core_of(1)));
}

TEST(LockstepRunHabits, NoneIsAllProcessors) {
  const Ended ended = lockstep({"run", "-n", "2", "--bind-to", "none", "/bin/sh", "-c", kShowCpus});
  EXPECT_THAT(lines_of(ended.out).at(0), HasSubstr(" " + launch::cpu_list(allowed_cpus()) + " "));
}

TEST(LockstepRunHabits, MoreRanksThanCoresAreRefusedBeforeTheyStart) {
  const Ended ended = lockstep({"run", "-n", "1000", "--bind-to", "core", "/bin/echo", "started"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err,
              testing::StartsWith("lockstep run: 1000 ranks with 1 core each do not fit"));
}

TEST(LockstepRunHabits, AHostFileOfThisHost) {
  const TestDirectory folder;
  folder.write("hosts", "localhost slots=2\n");
  const std::string file = (folder.path() / "hosts").string();
  const Ended ended =
      lockstep({"run", "--hostfile", file, "/bin/sh", "-c", "echo $RANK/$WORLD_SIZE"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(lines_of(ended.out), UnorderedElementsAre("0/2", "1/2"));
  EXPECT_EQ(lockstep({"run", "-n", "3", "--hostfile", file, "/bin/true"}).code, 2);
  EXPECT_EQ(lockstep({"run", "-n", "3", "--oversubscribe", "--hostfile", file, "/bin/true"}).code,
            0);
}

TEST(LockstepRunHabits, TheWorkingDirectoryIsTheRanksAndItsProgramIsLookedForThere) {
  const TestDirectory folder;
  folder.write("say", "#!/bin/sh\npwd\n");
  std::filesystem::permissions(folder.path() / "say", std::filesystem::perms::owner_all);
  const std::string here = std::filesystem::canonical(folder.path()).string();
  const Ended ended = lockstep({"run", "--wdir", here, "./say"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, here + "\n");
  const Ended nowhere = lockstep({"run", "--wdir", here + "/none", "/bin/true"});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("cannot be entered: No such file or directory"));
}

TEST(LockstepRunHabits, PathsInVariablesAreOfTheFolderWhereTheCommandWasTyped) {
  const TestDirectory folder;
  std::filesystem::create_directory(folder.path() / "work");
  folder.write("secret", "a-secret-of-some-length\n");
  std::filesystem::permissions(folder.path() / "secret", std::filesystem::perms::owner_read |
                                                             std::filesystem::perms::owner_write);
  const std::string here = std::filesystem::canonical(folder.path()).string();
  const Ended ended = run({"env", "-C", here, "LOCKSTEP_LIBTORCH=torch", lockstep_program(), "run",
                           "--wdir", "work", "/bin/sh", "-c", "echo $LOCKSTEP_LIBTORCH; pwd"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, here + "/torch\n" + here + "/work\n");
  // The agent reads the secret, and fails only because the other host does not come.
  const auto alone = [&](const std::string& secret) {
    return run({"env", "-C", here, "LOCKSTEP_SECRET_FILE=" + secret, lockstep_program(), "run",
                "--wdir", "work", "--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1",
                "--master-port", "1", "--rdzv-conf", "join_timeout=1", "/bin/true"});
  };
  const Ended unread = alone("absent");
  EXPECT_EQ(unread.code, 2);
  EXPECT_THAT(unread.err,
              testing::AllOf(HasSubstr("LOCKSTEP_SECRET_FILE"), HasSubstr(here + "/absent")));
  const Ended read = alone("secret");
  EXPECT_EQ(read.code, 1);
  EXPECT_THAT(read.err, testing::Not(HasSubstr("LOCKSTEP_SECRET_FILE")));
}

}  // namespace habits_mp_test
}  // namespace lockstep::inline v0::cli
