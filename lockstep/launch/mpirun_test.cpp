#include "lockstep/launch/mpirun.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace mpirun_test {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

EnvLookup lookup(std::map<std::string, std::string, std::less<>> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
}

TEST(MpiFamily, IsInTheVersion) {
  EXPECT_EQ(family_of_version("mpirun (Open MPI) 4.1.4\n"), MpiFamily::kOpenMpi);
  EXPECT_EQ(family_of_version("HYDRA build details:\n    Version: 4.0.2\n"), MpiFamily::kMpich);
  EXPECT_EQ(family_of_version("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 2023"),
            MpiFamily::kMpich);
  EXPECT_EQ(family_of_version("MVAPICH2 Version      :\t2.3.7"), MpiFamily::kMpich);
  EXPECT_EQ(family_of_version("mpirun: command not understood"), std::nullopt);
}

TEST(MpiFamily, ThatFitsIsTheLaunchers) {
  using Families = std::vector<MpiFamily>;
  const auto open_mpi = MpiFamily::kOpenMpi;
  const auto mpich = MpiFamily::kMpich;
  EXPECT_EQ(fitting_families(lookup({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "1"}})),
            Families{open_mpi});
  EXPECT_EQ(fitting_families(lookup({{"PMI_RANK", "1"}, {"MPI_LOCALRANKID", "1"}})),
            Families{mpich});
  EXPECT_EQ(fitting_families(lookup({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})),
            (Families{mpich, open_mpi}))
      << "srun --mpi=pmi2";
  EXPECT_EQ(fitting_families(lookup({{"PMIX_RANK", "1"}})), (Families{open_mpi, mpich}));
  EXPECT_EQ(fitting_families(lookup({})), (Families{open_mpi, mpich}));
}

TEST(MpiLauncher, IsKnownByItsVariables) {
  EXPECT_FALSE(started_by_mpi_launcher(lookup({{"RANK", "1"}, {"WORLD_SIZE", "2"}})));
  EXPECT_TRUE(started_by_mpi_launcher(lookup({{"PMIX_RANK", "1"}})));
  EXPECT_TRUE(started_by_mpi_launcher(lookup({{"PMI_RANK", "1"}})));
  EXPECT_TRUE(started_by_mpi_launcher(lookup({{"OMPI_COMM_WORLD_SIZE", "2"}})));
  EXPECT_EQ(mpi_launcher(lookup({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})), nullptr)
      << "srun sets them too";
  const std::map<std::string, std::string, std::less<>> pals = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_LOCAL_RANK", "0"}, {"PMI_LOCAL_SIZE", "1"}};
  ASSERT_NE(mpi_launcher(lookup(pals)), nullptr);
  EXPECT_EQ(mpi_launcher(lookup(pals))->family, MpiFamily::kMpich);
  auto under_slurm = pals;
  under_slurm["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(mpi_launcher(lookup(under_slurm)), nullptr);
}

TEST(Mpirun, IsCalledAsItsFamilyWantsIt) {
  const MpirunJob job{.nproc = 3,
                      .command = {"./train", "x"},
                      .env = {{"A", "b"}, {"RANK", ""}},
                      .tag_lines = true,
                      .flags = {"-x"}};
  const SubprocessOptions open_mpi =
      mpirun_process({.name = "mpirun", .file = "/bin/m", .family = MpiFamily::kOpenMpi}, job);
  EXPECT_THAT(open_mpi.command, ElementsAre("mpirun", "-n", "3", "--oversubscribe", "--bind-to",
                                            "none", "--tag-output", "-x", "./train", "x"));
  EXPECT_EQ(open_mpi.program, "/bin/m");
  EXPECT_THAT(*open_mpi.env, Contains("OMPI_ALLOW_RUN_AS_ROOT=1"));
  const SubprocessOptions mpich =
      mpirun_process({.name = "mpirun", .file = "/bin/m", .family = MpiFamily::kMpich}, job);
  EXPECT_THAT(mpich.command,
              ElementsAre("mpirun", "-n", "3", "-prepend-rank", "-x", "./train", "x"));
  MpirunJob quiet = job;
  quiet.no_input = true;
  EXPECT_THAT(
      mpirun_process({.name = "mpirun", .file = "/bin/m", .family = MpiFamily::kMpich}, quiet)
          .command,
      ElementsAre("mpirun", "-n", "3", "-prepend-rank", "-x", "/bin/sh", "-c",
                  "exec \"$@\" </dev/null", "sh", "./train", "x"));
  EXPECT_THAT(*mpich.env, Contains("A=b"));
  EXPECT_THAT(*mpich.env, Not(Contains(HasSubstr("PMI_RANK="))));
}

TEST(Mpirun, ThatCannotBeUsedIsNamed) {
  const auto error_of = [](const char* file) -> std::string {
    try {
      find_mpirun(lookup({{"LOCKSTEP_MPIRUN", file}}));
    } catch (const LaunchError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of("mpirun.nobody"), HasSubstr("LOCKSTEP_MPIRUN=mpirun.nobody"));
  EXPECT_THAT(error_of("/bin/true"), HasSubstr("/bin/true is neither Open MPI's mpirun nor"));
}

}  // namespace mpirun_test
}  // namespace lockstep::inline v0::launch
