// Tests lockstep plan --calibrate, and lockstep train lm --mesh auto, as users run them. Speed is
// never asserted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/cli/engine/tools_run_test.h"
#include "lockstep/plan/calibration/calibration.h"

namespace lockstep::inline v0::engine::calibrate_mp_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// What any machine of the last decade is within.
void expect_plausible(const plan::Calibration& found, int ranks) {
  const plan::Machine& machine = found.machine;
  EXPECT_EQ(machine.ranks_per_host, ranks);
  EXPECT_TRUE(machine.host);
  EXPECT_GT(machine.float32, 1e8);
  EXPECT_LT(machine.float32, 1e14);
  EXPECT_GT(machine.bfloat16, 1e6);
  EXPECT_GT(machine.memory, 1e8);
  EXPECT_GT(machine.memory_bandwidth, 1e7);
  EXPECT_LT(machine.memory_bandwidth, 1e13);
  EXPECT_GT(machine.launch, 0);
  EXPECT_LT(machine.launch, 1);
  for (const plan::Link& link : {machine.inside, machine.between}) {
    EXPECT_GT(link.bandwidth, 1e5);
    EXPECT_LT(link.bandwidth, 1e13);
    EXPECT_GE(link.latency, 0);
    EXPECT_LT(link.latency, 10);
  }
  EXPECT_FALSE(machine.sources.empty());
  ASSERT_TRUE(found.stack.has_value());
  EXPECT_GT(found.stack->attention, 0);
  EXPECT_GT(found.stack->fixed_bytes, 1e6) << "libtorch alone takes more";
}

TEST(Calibrate, MeasuresThisMachineAndWritesItsFile) {
  const TestDirectory dir;
  const std::string file = dir / "machine.json";
  const ToolsEnd ended =
      run_tools(dir, {"plan", "--calibrate", "--layers-of", "tiny:16", "--out", file});
  ASSERT_EQ(ended.status.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("Written: " + file));
  EXPECT_THAT(ended.err, HasSubstr("measured products, copies and operators"));
  EXPECT_THAT(ended.err, HasSubstr("measured layers of 1 model"));
  const plan::Calibration found = plan::find_calibration(file);
  expect_plausible(found, 2);
  // Of a whole model and of what two and four ranks have of it, with 1, 2, 4 and 8 sequences. Parts
  // that are lost in the noise are left out, but not updates.
  const auto count = [&](plan::StepPart part) {
    return std::count_if(found.stack->measured.begin(), found.stack->measured.end(),
                         [&](const plan::MeasuredPart& one) { return one.part == part; });
  };
  EXPECT_EQ(count(plan::StepPart::kUpdate), 3 * 4);
  EXPECT_GT(count(plan::StepPart::kLayer), 0);
  EXPECT_LE(count(plan::StepPart::kLayer), 3 * 4);
  EXPECT_GE(found.machine.collectives.size(), 3U);
}

TEST(Calibrate, OnStdoutIsTheFileAlone) {
  const TestDirectory dir;
  const ToolsEnd ended =
      run_tools(dir, {"plan", "--calibrate", "--layers-of", "none", "--out", "-"});
  ASSERT_EQ(ended.status.exit_code, 0) << ended.err;
  expect_plausible(plan::calibration_from_json(ended.out, "stdout"), 2);
}

// On most machines that test this, so many ranks share processors.
TEST(Calibrate, ThreeRanks) {
  const TestDirectory dir;
  const ToolsEnd ended = run_tools(
      dir, {"plan", "--calibrate", "--layers-of", "tiny:8", "--out", "-", "--nproc", "3"});
  ASSERT_EQ(ended.status.exit_code, 0) << ended.err;
  const plan::Calibration found = plan::calibration_from_json(ended.out, "stdout");
  expect_plausible(found, 3);
  EXPECT_FALSE(found.stack->measured.empty());
}

TEST(Calibrate, MistakesAreOneLineBeforeAnythingIsMeasured) {
  const TestDirectory dir;
  for (const auto& [words, text] :
       {std::pair{Arguments{"plan", "--calibrate", "--out", "/nowhere/machine.json"}, "/nowhere"},
        std::pair{Arguments{"plan", "--calibrate", "--nproc", "1"}, "--nproc is '1'; give 2 to"},
        std::pair{Arguments{"plan", "--calibrate", "--layers-of", "tinny"}, "--layers-of: "},
        std::pair{Arguments{"plan", "--calibrate", "--model", "gpt2"}, "leave out --model"}}) {
    const ToolsEnd ended = run_tools(dir, words);
    EXPECT_EQ(ended.status.exit_code, 2);
    EXPECT_THAT(ended.err, HasSubstr(text));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

TEST(AutoMesh, ARunTakesTheLayoutThatThePlanFinds) {
  const TestDirectory dir;
  const std::string output = dir / "run";
  const ToolsEnd ended = run_tools(dir,
                                   {"train", "lm", "--data", "sentences", "--nproc", "2", "--mesh",
                                    "auto", "--max-steps", "2", "--output", output},
                                   LOCKSTEP_ENGINE);
  ASSERT_EQ(ended.status.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("mesh auto: "));
  const auto config = nlohmann::json::parse(dir.read("run/config.json"));
  EXPECT_NE(config["mesh"], "auto");
  EXPECT_THAT(ended.err, HasSubstr("mesh auto: " + config["mesh"].get<std::string>() + ", "));
  EXPECT_EQ(config["nproc"], 2);
}

}  // namespace
}  // namespace lockstep::inline v0::engine::calibrate_mp_test
