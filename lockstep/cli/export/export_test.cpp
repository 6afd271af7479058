#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

#include "lockstep/cli/export/command.h"
#include "lockstep/cli/export/python.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::cli {
namespace export_test {

using testing::HasSubstr;
namespace fs = std::filesystem;

// A program that says what a Python would of its torch.
fs::path make_python(const TestDirectory& folder, const std::string& name,
                     const std::string& script) {
  fs::create_directories((folder / name).parent_path());
  folder.write(name, "#!/bin/sh\n" + script + "\n");
  ::chmod((folder / name).c_str(), 0755);
  return folder / name;
}

std::string usage_error(const std::vector<std::string>& words) {
  try {
    export_command(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ExportPython, OfAWheel) {
  EXPECT_EQ(python_of_wheel("/v/lib/python3.11/site-packages/torch"), "/v/bin/python3");
  EXPECT_EQ(python_of_wheel("/usr/local/lib/python3.11/dist-packages/torch"),
            "/usr/local/bin/python3");
  EXPECT_EQ(python_of_wheel("/opt/libtorch"), "");
  EXPECT_EQ(python_of_wheel("/v/lib/site-packages/torch"), "");
}

TEST(ExportPython, TheFirstThatFits) {
  const std::vector<FoundPython> found{
      {"/a", ""}, {"/b", "2.12.1"}, {"/c", "2.13.0+cpu"}, {"/d", "2.13.1"}};
  EXPECT_EQ(choose_python(found, {"2.13"})->program, "/c");
  EXPECT_EQ(choose_python(found, {"2.13", "2.12"})->program, "/b");
  EXPECT_FALSE(choose_python(found, {"2.1"}));
  EXPECT_FALSE(choose_python({}, {"2.13"}));
}

TEST(ExportPython, WhyNoneFitsIsOneLine) {
  const std::string none = no_python({}, {"2.13"}, false);
  EXPECT_THAT(none,
              testing::StartsWith(
                  "Lockstep is built for torch 2.13, and no Python was found; give --python PATH"));
  const std::string others = no_python({{"/a", ""}, {"/b", "2.9.1"}}, {"2.13"}, false);
  EXPECT_THAT(others, HasSubstr("/a has no torch"));
  EXPECT_THAT(others, HasSubstr("/b has torch 2.9.1"));
  EXPECT_THAT(no_python({{"/a", "2.9.1"}}, {"2.13", "2.12"}, true),
              testing::AllOf(HasSubstr("torch 2.13 or 2.12"),
                             HasSubstr("/a -m pip install 'torch==2.13.*'")));
  EXPECT_EQ(others.find('\n'), std::string::npos);
}

TEST(ExportPython, PlacesInTheirOrderThatExist) {
  const TestDirectory folder;
  for (const char* prefix : {"named", "built", "active", "repository/.venv"})
    make_python(folder, std::string(prefix) + "/bin/python3", "exit 0");
  for (const char* prefix : {"named", "built", "empty"})
    fs::create_directories(folder / prefix / "lib/python3.11/site-packages/torch");
  const std::map<std::string, std::string, std::less<>> variables{
      {"LOCKSTEP_LIBTORCH", (folder / "named/lib/python3.11/site-packages/torch").string()},
      {"VIRTUAL_ENV", (folder / "active").string()},
      {"CONDA_PREFIX", (folder / "empty").string()}};
  const EnvLookup env = [&variables](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  auto places =
      python_places(folder / "repository/build/release/bin/lockstep",
                    BuiltWith{"2.13.0", folder / "built/lib/python3.11/site-packages/torch"}, env);
  ASSERT_GE(places.size(), 4u);
  places.resize(4);  // behind them PATH's, where there is one
  EXPECT_THAT(places, testing::ElementsAre(
                          folder / "named/bin/python3", folder / "built/bin/python3",
                          folder / "active/bin/python3", folder / "repository/.venv/bin/python3"));
}

TEST(ExportPython, AnswersAreReadAndFailuresAreNone) {
  const TestDirectory folder;
  EXPECT_EQ(torch_version_of(make_python(folder, "good", "echo 2.9.1+cpu")), "2.9.1+cpu");
  EXPECT_EQ(torch_version_of(make_python(folder, "bad", "echo noise; echo more >&2; exit 1")), "");
  EXPECT_EQ(torch_version_of(folder / "absent"), "");
}

TEST(ExportCommand, WrongCommandLinesAreOneLine) {
  EXPECT_THAT(usage_error({"--to", "onnx"}), testing::StartsWith("CHECKPOINT is required"));
  EXPECT_THAT(usage_error({"runs/x"}), testing::StartsWith("--to is required"));
  EXPECT_THAT(usage_error({"runs/x", "--to", "tflite"}), HasSubstr("onnx"));
  EXPECT_THAT(usage_error({"runs/x", "--to", "onnx", "--input", "x=float32:1"}),
              testing::StartsWith("--input is of --twin"));
}

}  // namespace export_test
}  // namespace lockstep::inline v0::cli
