// Compares mpi_abi.h with the mpi.h of each MPI that is installed for development.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/comm/engines/mpi/mpi_library.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::mpi_headers_mp_test {
namespace {

using launch::MpiFamily;

using mpi::Abi;

constexpr Abi kAbis[] = {Abi::kOpenMpi, Abi::kMpich, Abi::kStandard};

struct Header {
  const char* name;
  std::vector<std::string> compilers;  // the first that is there compiles it
  const char* packages;                // to install for it
};
Header header_of(Abi abi) {
  switch (abi) {
    case Abi::kOpenMpi:
      return {"open_mpi", {"mpicxx.openmpi"}, "apt install libopenmpi-dev"};
    case Abi::kMpich:
      return {"mpich", {"mpicxx.mpich"}, "apt install libmpich-dev"};
    case Abi::kStandard:
      break;
  }
  return {"standard",
          {"mpicxx_abi", std::string(LOCKSTEP_MPI_ABI_ROOT) + "/bin/mpicxx_abi"},
          "pip install --prefix build/mpi-abi 'mpich>=5'"};
}

std::string name_of(const ::testing::TestParamInfo<MpiFamily>& info) {
  return info.param == MpiFamily::kOpenMpi ? "open_mpi" : "mpich";
}

std::string assertions(Abi abi) {
  const mpi::Constants constants = mpi::constants_of(abi);
  std::string text =
      "#include <mpi.h>\n"
      "#include <string_view>\n"
      "#define TEXT_OF(x) #x\n"
      "#define TEXT(x) std::string_view(TEXT_OF(x))\n"
      "constexpr bool has(std::string_view text, std::string_view part) {\n"
      "  return text.find(part) != text.npos;\n"
      "}\n";
  const auto claim = [&text](const std::string& condition) {
    text += "static_assert(" + condition + ");\n";
  };
  for (const mpi::HandleRow& row : mpi::kHandles) {
    const std::string name = row.name;
    std::array<char, 16> digits{};
    std::snprintf(digits.data(), digits.size(), "0x%08x", row.standard);
    switch (abi) {
      case Abi::kOpenMpi:
        claim("has(TEXT(" + name + "), \"(" + row.open_mpi + ")\")");
        break;
      case Abi::kMpich:
        claim("int(" + name + ") == " + std::to_string(row.mpich));
        break;
      case Abi::kStandard:
        claim("has(TEXT(" + name + "), \")" + digits.data() + ")\")");
        break;
    }
  }
  const std::string handle = abi == Abi::kMpich ? "int" : "void*";
  for (const char* type :
       {"MPI_Comm", "MPI_Datatype", "MPI_Op", "MPI_Request", "MPI_Group", "MPI_Errhandler"})
    claim("sizeof(" + std::string(type) + ") == sizeof(" + handle + ")");
  const char* space = abi == Abi::kStandard ? "" : " ";
  claim(std::string("has(TEXT(MPI_IN_PLACE), \")") + space + std::to_string(constants.in_place) +
        "\")");
  claim("MPI_ERR_TRUNCATE == " + std::to_string(constants.error_truncate));
  claim("MPI_SUCCESS == " + std::to_string(mpi::kSuccess));
  claim("MPI_THREAD_SERIALIZED == " + std::to_string(constants.thread_serialized));
  claim("MPI_MAX_ERROR_STRING <= " + std::to_string(mpi::kMostText));
  claim("MPI_MAX_LIBRARY_VERSION_STRING <= " + std::to_string(mpi::kMostText));
  claim("sizeof(MPI_Status) <= " + std::to_string(sizeof(mpi::Status)));
  claim("alignof(MPI_Status) <= " + std::to_string(alignof(mpi::Status)));
  claim("sizeof(MPI_Count) == sizeof(long long)");
  return text;
}

class MpiHeaders : public ::testing::TestWithParam<Abi> {};

TEST_P(MpiHeaders, SayWhatTheTableSays) {
  const Header header = header_of(GetParam());
  std::string compiler;
  for (const std::string& one : header.compilers) {
    try {
      if (compiler.empty()) compiler = find_program(one);
    } catch (const LaunchError&) {
    }
  }
  if (compiler.empty())
    GTEST_SKIP() << "no " << header.compilers[0] << ": " << header.packages << " to run this test";
  const TestDirectory dir;
  const auto compile = [&](const std::string& source) {
    std::ofstream(dir / "check.cpp") << source;
    const UniqueFd output(::creat((dir / "output").c_str(), 0600));
    SubprocessOptions options;
    options.command = {compiler,
                       "-std=c++20",
                       "-fsyntax-only",
                       "-DOMPI_SKIP_MPICXX",
                       "-DMPICH_SKIP_MPICXX",
                       dir / "check.cpp"};
    options.stdout_fd = options.stderr_fd = output.get();
    return Subprocess(options).wait(Deadline::seconds(120)).ok();
  };
  EXPECT_TRUE(compile(assertions(GetParam()))) << dir.read("output");
  for (const Abi other : kAbis) {
    if (other == GetParam()) continue;
    EXPECT_FALSE(compile(assertions(other))) << "the assertions tell them apart";
  }
}

INSTANTIATE_TEST_SUITE_P(Abis, MpiHeaders, ::testing::ValuesIn(kAbis),
                         [](const auto& info) { return header_of(info.param).name; });

class MpiLibraryLoaded : public ::testing::TestWithParam<MpiFamily> {};

constexpr int kNotThere = 77;

// A program may be linked with an MPI of its own, and a second one in the process would conflict.
// It runs in a child, since a loaded library stays loaded.
TEST_P(MpiLibraryLoaded, TheProgramsOwnComesFirst) {
  const MpiFamily own = GetParam();
  const MpiFamily other = own == MpiFamily::kOpenMpi ? MpiFamily::kMpich : MpiFamily::kOpenMpi;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    void* loaded = nullptr;
    for (const std::string& file : launch::mpi_library_files(own)) {
      if (loaded == nullptr) loaded = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    }
    if (loaded == nullptr) std::_Exit(kNotThere);
    const mpi::Library library({launch::mpi_library_files(other), "", "", false});
    std::_Exit(launch::family_of_version(library.name()) == own ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotThere) {
    GTEST_SKIP() << "no library of " << to_string(own) << ": apt install "
                 << launch::mpi_package(own) << " to run this test";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

INSTANTIATE_TEST_SUITE_P(Families, MpiLibraryLoaded, ::testing::ValuesIn(launch::kMpiFamilies),
                         name_of);

}  // namespace
}  // namespace lockstep::inline v0::mpi_headers_mp_test
