#include "lockstep/comm/mpi/mpi_library.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/comm/mpi/mpi_process.h"
#include "lockstep/core/errors.h"

namespace lockstep::mpi_library_test {
namespace {

std::string reason_of(const std::string& file) {
  try {
    const mpi::Library library(file);
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "no exception";
}

TEST(MpiLibrary, WithoutOpenMpiTheErrorNamesThePackage) {
  const std::string text = reason_of("libmpi-that-nobody-has.so.40");
  EXPECT_NE(text.find("apt install openmpi-bin libopenmpi3"), std::string::npos) << text;
  EXPECT_NE(text.find("libmpi-that-nobody-has.so.40"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(MpiLibrary, AnotherLibraryIsRefused) {
  const std::string text = reason_of("libc.so.6");
  EXPECT_NE(text.find("is no Open MPI 4 or 5"), std::string::npos) << text;
}

TEST(MpiProcess, KnowsMpisLaunchersByTheirEnvironment) {
  std::map<std::string, std::string> variables;
  const EnvLookup env = [&](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    if (it == variables.end()) return std::nullopt;
    return it->second;
  };
  EXPECT_FALSE(mpi::started_by_mpi_launcher(env));
  variables["RANK"] = "1";
  variables["WORLD_SIZE"] = "2";
  EXPECT_FALSE(mpi::started_by_mpi_launcher(env));
  variables["PMIX_RANK"] = "1";
  EXPECT_TRUE(mpi::started_by_mpi_launcher(env));
  variables = {{"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_TRUE(mpi::started_by_mpi_launcher(env));
}

}  // namespace
}  // namespace lockstep::mpi_library_test
