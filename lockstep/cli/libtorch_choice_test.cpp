// Which build of the engine starts, and with which libtorch.
#include "lockstep/cli/libtorch_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::cli {
namespace libtorch_choice_test {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

const std::vector<TorchBuild> kBuilds = {{"2.14", "/p/torch-2.14"}, {"2.13", "/p/torch-2.13"}};

EnvLookup environment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](std::string_view name) -> std::optional<std::string> {
    const auto at = values.find(std::string(name));
    return at == values.end() ? std::nullopt : std::optional(at->second);
  };
}

// A libtorch whose version a wheel states.
std::filesystem::path make_libtorch(const TestDirectory& dir, const std::string& name,
                                    const std::string& version) {
  std::filesystem::create_directories(dir / name / "lib");
  dir.write(name + "/lib/libtorch_cpu.so", "");
  if (!version.empty()) dir.write(name + "/version.py", "__version__ = '" + version + "'\n");
  return dir / name;
}

void make_build(const TestDirectory& dir, const std::string& minor) {
  const std::string folder = "libexec/lockstep/torch-" + minor;
  std::filesystem::create_directories(dir / folder);
  dir.write(folder + "/lockstep-engine", "");
  ASSERT_EQ(::chmod((dir / folder / "lockstep-engine").c_str(), 0755), 0);
}

TEST(LibtorchChoice, TheMinorVersionIsOfTheFormThatLibtorchStates) {
  EXPECT_EQ(minor_of("2.13.0+cpu"), "2.13");
  EXPECT_EQ(minor_of("2.14.0a0+git1234"), "2.14");
  EXPECT_EQ(minor_of("2.13"), "2.13");
  for (const char* none : {"", "2", "2.", ".3", "main"}) EXPECT_EQ(minor_of(none), "") << none;
}

TEST(LibtorchChoice, TheFirstLibtorchThatFitsDecidesTheBuild) {
  const auto choice = choose_libtorch(kBuilds, {{"/a/lib", "2.12.1", "python3", ""},
                                                {"/b/lib", "2.13.1+cpu", "the system", ""},
                                                {"/c/lib", "2.14.0", "the system", ""}});
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->build.minor, "2.13");
  EXPECT_EQ(choice->libtorch.lib, "/b/lib");
  EXPECT_FALSE(choose_libtorch(kBuilds, {{"/a/lib", "2.12.1", "python3", ""}}));
  EXPECT_FALSE(choose_libtorch(kBuilds, {{"/a/lib", "", "LD_LIBRARY_PATH", ""}}));
}

TEST(LibtorchChoice, OneThatWasInstalledWithABuildFitsIfNothingSaysOtherwise) {
  EXPECT_TRUE(choose_libtorch(kBuilds, {{"/p/torch-2.13/libtorch/lib", "", "", "2.13"}}));
  // A link to a wheel that has since become another release.
  EXPECT_FALSE(choose_libtorch(kBuilds, {{"/p/torch-2.13/libtorch/lib", "2.14.0", "", "2.13"}}));
}

TEST(LibtorchChoice, TheRefusalSaysWhatIsInstalledAndWhatWasFound) {
  EXPECT_EQ(no_libtorch(kBuilds, {}),
            "Lockstep is installed here for libtorch 2.13 or 2.14, and none was found; install one "
            "(pip install 'torch==2.14.*'), or set LOCKSTEP_LIBTORCH to its folder");
  EXPECT_THAT(no_libtorch({kBuilds[1]}, {{"/a/lib", "2.12.1", "python3", ""}}),
              HasSubstr("for libtorch 2.13, and found only 2.12.1 in /a/lib (python3); install"));
  EXPECT_THAT(no_libtorch(kBuilds, {{"/a/lib", "", "LOCKSTEP_LIBTORCH", ""}}),
              HasSubstr(", and LOCKSTEP_LIBTORCH names an unknown version in /a/lib"));
}

TEST(LibtorchChoice, TheLibraryPathChangesOnlyWhereItMust) {
  const LibtorchChoice own{kBuilds[0], {"/p/torch-2.14/libtorch/lib", "2.14.0", "", "2.14"}};
  EXPECT_EQ(library_path(own, "", false), std::nullopt);
  EXPECT_EQ(library_path(own, "/other", true), "/p/torch-2.14/libtorch/lib:/other");
  const LibtorchChoice wheel{kBuilds[0], {"/w/torch/lib", "2.14.0", "python3", ""}};
  EXPECT_EQ(library_path(wheel, "", false), "/w/torch/lib");
  EXPECT_EQ(library_path(wheel, "/mine", false), "/w/torch/lib:/mine");
  const LibtorchChoice path{kBuilds[0], {"/w/torch/lib", "2.14.0", "LD_LIBRARY_PATH", ""}};
  EXPECT_EQ(library_path(path, "/w/torch/lib", true), std::nullopt);
}

TEST(LibtorchChoice, BuildsAreSortedAsNumbers) {
  const TestDirectory dir;
  for (const char* minor : {"2.9", "2.13", "2.11"}) make_build(dir, minor);
  EXPECT_THAT(torch_builds(dir.path(), "lockstep-engine"),
              ElementsAre(Field(&TorchBuild::minor, "2.13"), Field(&TorchBuild::minor, "2.11"),
                          Field(&TorchBuild::minor, "2.9")));
  EXPECT_TRUE(torch_builds(dir.path(), "lockstep-tools").empty());
}

TEST(LibtorchChoice, TheEngineStartsWithTheLibtorchThatWasFound) {
  const TestDirectory dir;
  const auto lockstep = dir / "bin" / "lockstep";
  make_build(dir, "2.13");
  make_build(dir, "2.14");
  const auto wheel = make_libtorch(dir, "torch", "2.13.0+cpu");

  const EngineStart named = engine_start(lockstep, "lockstep-engine",
                                         environment({{"LOCKSTEP_LIBTORCH", wheel.string()}}));
  EXPECT_EQ(named.program, dir / "libexec/lockstep/torch-2.13/lockstep-engine");
  ASSERT_TRUE(named.environment);
  EXPECT_THAT(*named.environment, testing::Contains("LD_LIBRARY_PATH=" + (wheel / "lib").string()));

  std::filesystem::create_directories(dir / "venv/lib/python3.11/site-packages");
  std::filesystem::rename(wheel, dir / "venv/lib/python3.11/site-packages/torch");
  const EngineStart active = engine_start(lockstep, "lockstep-engine",
                                          environment({{"VIRTUAL_ENV", (dir / "venv").string()}}));
  ASSERT_TRUE(active.choice);
  EXPECT_EQ(active.choice->libtorch.found_by, "VIRTUAL_ENV");

  // A link beside the program, which the loader follows.
  std::filesystem::create_directory_symlink(dir / "venv/lib/python3.11/site-packages/torch",
                                            dir / "libexec/lockstep/torch-2.13/libtorch");
  const EngineStart linked = engine_start(lockstep, "lockstep-engine", environment({}));
  EXPECT_EQ(linked.program, dir / "libexec/lockstep/torch-2.13/lockstep-engine");
  EXPECT_FALSE(linked.environment);
}

TEST(LibtorchChoice, WhatLockstepLibtorchNamesAloneCounts) {
  const TestDirectory dir;
  const auto lockstep = dir / "bin" / "lockstep";
  make_build(dir, "2.13");
  make_libtorch(dir, "libexec/lockstep/torch-2.13/libtorch", "2.13.0");
  const auto other = make_libtorch(dir, "other", "2.12.0");
  const auto refusal = [&](const std::string& folder) -> std::string {
    try {
      engine_start(lockstep, "lockstep-engine", environment({{"LOCKSTEP_LIBTORCH", folder}}));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(other.string()), HasSubstr("LOCKSTEP_LIBTORCH names 2.12.0 in"));
  EXPECT_THAT(refusal((dir / "nothing").string()), HasSubstr("names no libtorch"));
}

TEST(LibtorchChoice, AProgramOfABuildTreeKnowsItsLibtorch) {
  const TestDirectory dir;
  std::filesystem::create_directories(dir / "libexec/lockstep");
  dir.write("libexec/lockstep/lockstep-engine", "");
  ASSERT_EQ(::chmod((dir / "libexec/lockstep/lockstep-engine").c_str(), 0755), 0);
  const EngineStart start = engine_start(dir / "bin" / "lockstep", "lockstep-engine",
                                         environment({{"LOCKSTEP_LIBTORCH", "/nothing"}}));
  EXPECT_EQ(start.program, dir / "libexec/lockstep/lockstep-engine");
  EXPECT_FALSE(start.environment);
}

}  // namespace libtorch_choice_test
}  // namespace lockstep::inline v0::cli
