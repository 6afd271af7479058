// The whole program on CUDA devices that the host plays, with tiny models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/gpu_check/commands.h"
#include "lockstep/testing/preloaded.h"

namespace lockstep::inline v0::gpu_check {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class GpuCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "the sanitizers' library comes before all that is preloaded";
  }

  // With `devices` of them; 0: none.
  static CommandOutput run(int devices, const std::vector<std::string>& arguments) {
    std::vector<std::string> command{"env"};
    if (devices > 0) {
      for (const std::string& one :
           testing::fake_device_variables(LOCKSTEP_FAKE_CUDA_PRELOAD, devices))
        command.push_back(one);
    }
    command.emplace_back(LOCKSTEP_GPU_CHECK);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_command(command, 240);
  }

  // The rows of one run, by what they looked at: "ok", "failed" or "skipped", and the text.
  std::map<std::string, std::string> rows(int devices, const std::string& only) const {
    const CommandOutput ended = run(devices, {"--small", "--json", dir_ / "rows.json", "--only",
                                              only, "--python", "/no/python"});
    EXPECT_THAT(ended.text, Not(HasSubstr("race"))) << ended.text;
    std::map<std::string, std::string> result;
    const json report = json::parse(dir_.read("rows.json"));
    for (const json& row : report.at("rows")) {
      result[row.at("check")] =
          row.at("outcome").get<std::string>() + ": " + row.at("text").get<std::string>();
      EXPECT_THAT(ended.text, HasSubstr(row.at("check").get<std::string>()));
      EXPECT_TRUE(row.at("outcome") != "failed") << row.dump();
    }
    EXPECT_EQ(ended.wrong, "") << ended.text;
    return result;
  }

  TestDirectory dir_;
};

std::string begins(const std::map<std::string, std::string>& rows, const std::string& check) {
  const auto it = rows.find(check);
  return it == rows.end() ? "no row" : it->second.substr(0, it->second.find(':'));
}

TEST_F(GpuCheck, WhatIsNotHereIsARowThatSaysWhy) {
  const auto found = rows(1, "machine,shared-nccl,stops,memcheck");
  EXPECT_EQ(begins(found, "libtorch"), "ok");
  EXPECT_EQ(begins(found, "nvidia-smi"), "skipped");
  EXPECT_EQ(begins(found, "ceilings"), "skipped");
  EXPECT_EQ(begins(found, "Python's torch"), "skipped");
  EXPECT_EQ(begins(found, "nccl, ranks that share a device"), "skipped");
  EXPECT_EQ(begins(found, "steps without a stop"), "skipped");
}

TEST_F(GpuCheck, OperationsAreRightAndFaultsAreNamed) {
  const auto found = rows(1, "device,operations,faults");
  for (const char* check :
       {"two streams in turns, by events", "timer", "generator",
        "two processes: memory and an event of another process",
        "staged, 2 ranks that are threads: operations", "nccl, 1 rank: operations",
        "staged:shm, 2 ranks: operations", "staged:shm, 3 ranks: a rank is killed",
        "staged:shm, 3 ranks: a rank stops (time-out 4 s)",
        "staged:shm, 3 ranks: a rank calls with another shape", "peer, 2 ranks: operations",
        "peer, 4 ranks: operations", "peer, 3 ranks: a rank is killed"})
    EXPECT_EQ(begins(found, check), "ok") << check;
  EXPECT_EQ(begins(found, "nccl"), "skipped");
}

TEST_F(GpuCheck, TrainingIsThatOfOneProcess) {
  const auto found = rows(2, "ddp,checkpoints,steps,shared-device");
  for (const char* check :
       {"staged:shm, 2 ranks: numbers of one process", "staged:shm, 2 ranks: the ranks' parameters",
        "staged:shm, 2 ranks: a second run", "a resumed run with dropout", "a snapshot of 1 MiB",
        "SimpleCnn 4, Lockstep", "ResNet-50 2, Lockstep", "BERT 2 x 8, Lockstep",
        "LM bf16 2 x 8, Lockstep", "staged:shm, 2 ranks: SimpleCnn 4"})
    EXPECT_EQ(begins(found, check), "ok") << check;
  // Devices that are played have graphs with libtorch from 2.13 on.
  const bool graphs = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13;
  EXPECT_EQ(begins(found, "graphs"), graphs ? "ok" : "skipped");
  for (const char* model : {"SimpleCnn 4", "ResNet-50 2", "BERT 2 x 8", "LM bf16 2 x 8"})
    EXPECT_EQ(begins(found, std::string(model) + ", Lockstep as a CUDA graph"),
              graphs ? "ok" : "skipped")
        << model;
}

TEST_F(GpuCheck, AMachineWithoutADeviceAndAPartThatIsNoneAreSaidInOneLine) {
  const CommandOutput without = run(0, {});
  EXPECT_EQ(without.wrong, "ended with 2");
  EXPECT_THAT(without.text, HasSubstr("no CUDA device is visible"));
  const CommandOutput unknown = run(1, {"--only", "fault"});
  EXPECT_EQ(unknown.wrong, "ended with 2");
  EXPECT_THAT(unknown.text, HasSubstr("faults"));
}

// A part that hangs, and one for which nothing is left, are rows; the others' are there.
TEST_F(GpuCheck, TimeThatIsOverEndsNoMoreThanItsPart) {
  const CommandOutput ended = run(1, {"--small", "--json", dir_ / "rows.json", "--only",
                                      "faults,checkpoints", "--seconds", "4"});
  EXPECT_EQ(ended.wrong, "ended with 1");
  const json report = json::parse(dir_.read("rows.json"));
  std::map<std::string, json> last;
  for (const json& row : report.at("rows")) last[row.at("part")] = row;
  ASSERT_EQ(last.size(), 2u) << report.dump(1);
  EXPECT_EQ(last["faults"].at("outcome"), "failed") << report.dump(1);
  EXPECT_THAT(last["faults"].at("text").get<std::string>(), HasSubstr("was not over after"));
  EXPECT_EQ(last["checkpoints"].at("outcome"), "skipped") << report.dump(1);
}

}  // namespace
}  // namespace lockstep::inline v0::gpu_check
