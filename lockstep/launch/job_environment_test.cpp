#include "lockstep/launch/job_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace job_environment_test {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

EnvLookup lookup(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() || it->second.empty() ? std::nullopt : std::optional(it->second);
  };
}

JobEnvironment read(Variables variables) {
  return read_job_environment(lookup(std::move(variables)));
}

std::string error_of(Variables variables) {
  try {
    read(std::move(variables));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

Variables torchrun() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"GROUP_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "10.0.0.1"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RESTART_COUNT", "2"}};
}

TEST(JobEnvironment, WhatFollowsWhenARankDies) {
  const auto of = [](const char* way) {
    return read({{"LOCKSTEP_STORE", "127.0.0.1:1234"},
                 {"RANK", "0"},
                 {"WORLD_SIZE", "2"},
                 {"LOCKSTEP_ON_FAILURE", way}});
  };
  EXPECT_TRUE(of("replace").replaces);
  EXPECT_FALSE(of("replace").shrinks);
  EXPECT_TRUE(of("shrink").shrinks);
  EXPECT_FALSE(of("shrink").replaces);
  EXPECT_FALSE(of("").replaces || of("").shrinks);
}

TEST(JobEnvironment, NothingSetIsAloneAndNotUnderALauncher) {
  const JobEnvironment job = read({});
  EXPECT_EQ(job.launcher, Launcher::kNone);
  EXPECT_EQ(job.rank, 0);
  EXPECT_EQ(job.world_size, 1);
  EXPECT_EQ(job.local_world_size, 1);
  EXPECT_FALSE(job.store);
  EXPECT_FALSE(job.master);
}

TEST(JobEnvironment, Torchrun) {
  const JobEnvironment job = read(torchrun());
  EXPECT_EQ(job.launcher, Launcher::kTorchrun);
  EXPECT_EQ(job.rank, 3);
  EXPECT_EQ(job.world_size, 4);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world_size, 2);
  EXPECT_EQ(job.node_rank, 1);
  EXPECT_EQ(job.restart_count, 2);
  ASSERT_TRUE(job.master);
  EXPECT_EQ(job.master->to_string(), "10.0.0.1:29500");
}

TEST(JobEnvironment, LockstepsOwnAgentComesFirst) {
  Variables variables = torchrun();
  variables["LOCKSTEP_STORE"] = "127.0.0.1:1234";
  variables["OMPI_COMM_WORLD_RANK"] = "0";
  variables["OMPI_COMM_WORLD_SIZE"] = "9";
  const JobEnvironment job = read(variables);
  EXPECT_EQ(job.launcher, Launcher::kLockstep);
  EXPECT_EQ(job.rank, 3);
  ASSERT_TRUE(job.store);
  EXPECT_EQ(job.store->to_string(), "127.0.0.1:1234");
}

TEST(JobEnvironment, ASpareKnowsItsLauncherBeforeItHasARank) {
  const EnvLookup spare = lookup({{"LOCKSTEP_STORE", "127.0.0.1:4000"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(launcher_of(spare), Launcher::kLockstep);
  EXPECT_THROW(read_job_environment(spare), InvalidArgument);
}

TEST(JobEnvironment, RanksStartedByHandNeedNoLocalRank) {
  const JobEnvironment job = read(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(job.launcher, Launcher::kTorchrun);
  EXPECT_EQ(job.local_rank, 0);
  EXPECT_EQ(job.local_world_size, 1);
}

TEST(JobEnvironment, OpenMpi) {
  const JobEnvironment job = read({{"OMPI_COMM_WORLD_RANK", "5"},
                                   {"OMPI_COMM_WORLD_SIZE", "8"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                   {"OMPI_COMM_WORLD_NODE_RANK", "1"}});
  EXPECT_EQ(job.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(job.rank, 5);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world_size, 4);
  EXPECT_EQ(job.node_rank, 1);
  EXPECT_FALSE(job.master);
}

// The variables that Hydra, the mpirun of MPICH and Intel MPI, sets.
Variables hydra() {
  return {{"PMI_RANK", "5"},
          {"PMI_SIZE", "8"},
          {"PMI_FD", "7"},
          {"MPI_LOCALRANKID", "1"},
          {"MPI_LOCALNRANKS", "4"}};
}

TEST(JobEnvironment, Mpich) {
  const JobEnvironment job = read(hydra());
  EXPECT_EQ(job.launcher, Launcher::kMpich);
  EXPECT_EQ(job.rank, 5);
  EXPECT_EQ(job.world_size, 8);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world_size, 4);
  EXPECT_EQ(job.node_rank, 1);
  EXPECT_FALSE(job.master);
}

TEST(JobEnvironment, OtherMpirunsOfMpichsFamily) {
  for (const auto& [rank, size, local_rank, local_size] :
       {std::array{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
                   "MV2_COMM_WORLD_LOCAL_SIZE"},
        std::array{"PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"}}) {
    const JobEnvironment job =
        read({{rank, "3"}, {size, "4"}, {local_rank, "1"}, {local_size, "2"}});
    EXPECT_EQ(job.launcher, Launcher::kMpich) << rank;
    EXPECT_EQ(job.rank, 3) << rank;
    EXPECT_EQ(job.local_world_size, 2) << rank;
  }
}

Variables slurm() {
  return {{"SLURM_PROCID", "9"},  {"SLURM_STEP_NUM_TASKS", "11"},           {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "2"},  {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}, {"SLURM_STEP_ID", "0"},
          {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_NODELIST", "gpu[03-04,11]"}};
}

TEST(JobEnvironment, Slurm) {
  const JobEnvironment job = read(slurm());
  EXPECT_EQ(job.launcher, Launcher::kSlurm);
  EXPECT_EQ(job.rank, 9);
  EXPECT_EQ(job.world_size, 11);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world_size, 3);
  EXPECT_EQ(job.node_rank, 2);
  ASSERT_TRUE(job.master);
  EXPECT_EQ(job.master->host, "gpu03");
  EXPECT_GE(job.master->port, 15000);
  EXPECT_LT(job.master->port, 30000);
}

TEST(JobEnvironment, SlurmNodeLists) {
  for (const auto& [list, first] : std::map<std::string, std::string>{{"n1", "n1"},
                                                                      {"n1,n2", "n1"},
                                                                      {"n[7]", "n7"},
                                                                      {"n[1,3]-ib,m", "n1-ib"},
                                                                      {"a-b[001-100]", "a-b001"}}) {
    Variables variables = slurm();
    variables["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ(read(variables).master->host, first) << list;
  }
}

TEST(JobEnvironment, SlurmTakesWhatTheUserSetOfAddressAndPort) {
  Variables variables = slurm();
  const uint16_t derived = read(variables).master->port;
  variables["MASTER_ADDR"] = "10.0.0.1";
  EXPECT_EQ(read(variables).master->to_string(), "10.0.0.1:" + std::to_string(derived));
  variables["MASTER_PORT"] = "7";
  EXPECT_EQ(read(variables).master->to_string(), "10.0.0.1:7");
  variables["MASTER_ADDR"] = "";
  EXPECT_EQ(read(variables).master->to_string(), "gpu03:7");
}

TEST(JobEnvironment, ASlurmAllocationWithoutStepIsAlone) {
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}).launcher,
            Launcher::kNone);
  Variables one = slurm();
  one["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_EQ(read(one).launcher, Launcher::kNone);
}

TEST(JobEnvironment, InsideSlurmTorchrunsRanksCount) {
  Variables variables = slurm();
  variables.merge(torchrun());
  EXPECT_EQ(read(variables).launcher, Launcher::kTorchrun);
}

// mpirun's daemons are then the step's tasks, one per node, and its ranks inherit their variables.
TEST(JobEnvironment, InsideSlurmMpirunsRanksCount) {
  Variables variables = slurm();
  variables.merge(hydra());
  EXPECT_EQ(read(variables).launcher, Launcher::kMpich);
  EXPECT_EQ(read(variables).rank, 5);
}

// srun --mpi=pmi2.
TEST(JobEnvironment, SrunThatSpeaksPmiIsSrun) {
  Variables variables = slurm();
  variables["PMI_RANK"] = "9";
  variables["PMI_SIZE"] = "11";
  EXPECT_EQ(read(variables).launcher, Launcher::kSlurm);
  EXPECT_EQ(read(variables).rank, 9);
}

TEST(JobEnvironment, ContradictionsNameTheVariables) {
  struct Case {
    const char* name;
    const char* value;
    const char* expected;
  };
  for (const Case& c :
       {Case{"RANK", "4", "RANK=4 contradicts WORLD_SIZE=4"}, Case{"RANK", "-1", "RANK=-1"},
        Case{"RANK", "two", "RANK=two"},
        Case{"RANK", "", "RANK is missing, although WORLD_SIZE is set"},
        Case{"WORLD_SIZE", "", "WORLD_SIZE is missing, although RANK is set"},
        Case{"WORLD_SIZE", "0", "WORLD_SIZE=0"},
        Case{"WORLD_SIZE", "99999999999", "WORLD_SIZE=99999999999"},
        Case{"LOCAL_RANK", "2", "LOCAL_RANK=2 contradicts LOCAL_WORLD_SIZE=2"},
        Case{"LOCAL_WORLD_SIZE", "5", "LOCAL_WORLD_SIZE=5 contradicts WORLD_SIZE=4"},
        Case{"NODE_RANK", "0", "NODE_RANK=0 contradicts GROUP_RANK=1"},
        Case{"MASTER_ADDR", "", "MASTER_ADDR is missing"},
        Case{"MASTER_PORT", "", "MASTER_PORT is missing"},
        Case{"MASTER_PORT", "70000", "MASTER_PORT=70000"},
        Case{"LOCKSTEP_STORE", "nonsense", "'nonsense' is not an address"}}) {
    Variables variables = torchrun();
    variables[c.name] = c.value;
    EXPECT_THAT(error_of(variables), HasSubstr(c.expected)) << c.name;
  }
  EXPECT_THAT(error_of({{"LOCKSTEP_STORE", "127.0.0.1:1"}}),
              HasSubstr("WORLD_SIZE is missing, although LOCKSTEP_STORE is set"));
  EXPECT_THAT(error_of({{"OMPI_COMM_WORLD_RANK", "0"}}),
              HasSubstr("OMPI_COMM_WORLD_SIZE is missing"));
  Variables torn = hydra();
  torn.erase("PMI_SIZE");
  EXPECT_THAT(error_of(torn), HasSubstr("PMI_SIZE is missing, although PMI_RANK is set"));
  torn["PMI_SIZE"] = "5";
  EXPECT_THAT(error_of(torn), HasSubstr("PMI_RANK=5 contradicts PMI_SIZE=5"));
  for (const auto& [name, value] : Variables{{"SLURM_PROCID", "11"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                             {"SLURM_LOCALID", "3"}}) {
    Variables variables = slurm();
    variables[name] = value;
    EXPECT_THAT(error_of(variables), HasSubstr(name));
  }
}

}  // namespace job_environment_test
}  // namespace lockstep::inline v0::launch
