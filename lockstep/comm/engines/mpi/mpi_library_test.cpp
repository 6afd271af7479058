#include "lockstep/comm/engines/mpi/mpi_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::mpi_library_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

EnvLookup environment(std::map<std::string, std::string, std::less<>> values) {
  return [values = std::move(values)](std::string_view name) -> std::optional<std::string> {
    const auto it = values.find(name);
    if (it == values.end()) return std::nullopt;
    return it->second;
  };
}

std::string reason_of(const mpi::LibraryChoice& choice) {
  try {
    const mpi::Library library(choice);
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "no exception";
}

TEST(MpiLibrary, IsTheLaunchers) {
  EXPECT_THAT(mpi::choose_library(environment({{"OMPI_COMM_WORLD_SIZE", "2"}})).files,
              ElementsAre("libmpi.so.40", "libmpi_abi.so.1"));
  EXPECT_THAT(mpi::choose_library(environment({{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}})).files,
              ElementsAre("libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"));
  EXPECT_THAT(mpi::choose_library(environment({{"PMI_RANK", "0"}})).files,
              ElementsAre("libmpi.so.12", "libmpich.so.12", "libmpi.so.40", "libmpi_abi.so.1"));
  EXPECT_THAT(mpi::choose_library(environment({})).files,
              ElementsAre("libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"));
  EXPECT_THAT(mpi::choose_library(environment({{"OMPI_COMM_WORLD_SIZE", "2"},
                                               {"LOCKSTEP_MPI_LIBRARY", "/opt/libmpi.so"}}))
                  .files,
              ElementsAre("/opt/libmpi.so"));
}

TEST(MpiLibrary, WithoutOneTheErrorNamesThePackages) {
  for (const auto& [env, words] : std::vector<std::pair<EnvLookup, std::vector<const char*>>>{
           {environment({}), {"neither can be loaded", "openmpi-bin, or apt install mpich"}},
           {environment({{"OMPI_COMM_WORLD_SIZE", "2"}}),
            {"Open MPI's mpirun started this process, but Open MPI's library",
             "apt install openmpi-bin"}},
           {environment({{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}}),
            {"MPICH's mpirun started this process, but MPICH's library", "apt install mpich"}},
           {environment({{"LOCKSTEP_MPI_LIBRARY", "x"}}), {"LOCKSTEP_MPI_LIBRARY=x cannot"}}}) {
    mpi::LibraryChoice choice = mpi::choose_library(env);
    choice.files = {"libmpi-that-nobody-has.so.40"};
    const std::string text = reason_of(choice);
    for (const char* word : words) EXPECT_THAT(text, HasSubstr(word));
    EXPECT_THAT(text, HasSubstr("libmpi-that-nobody-has.so.40: cannot open"));
    EXPECT_THAT(text, Not(HasSubstr("\n")));
  }
}

TEST(MpiLibrary, AnotherLibraryIsRefused) {
  EXPECT_THAT(reason_of({{"libc.so.6"}, "", "", true}),
              HasSubstr("libc.so.6 has no MPI_Get_library_version: Lockstep knows"));
}

TEST(MpiLibrary, VersionsInAWordOrTwo) {
  EXPECT_EQ(mpi::short_version("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"),
            "Open MPI v4.1.4");
  EXPECT_EQ(mpi::short_version("MPICH Version:      4.0.2\nMPICH Release date: Thu Apr 7\n"),
            "MPICH 4.0.2");
  EXPECT_EQ(mpi::short_version("Intel(R) MPI Library 2021.9 for Linux* OS\n"),
            "Intel(R) MPI Library 2021.9 for Linux* OS");
  EXPECT_EQ(mpi::short_version("MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\n"),
            "CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)");
  EXPECT_EQ(mpi::short_version("MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date : x"),
            "MVAPICH2 2.3.7");
}

}  // namespace
}  // namespace lockstep::inline v0::mpi_library_test
