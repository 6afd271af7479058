// Tests `lockstep compare --parallelism` with a tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/cli/engine/tools_run_test.h"

namespace lockstep::inline v0::engine::parallelism_mp_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

ToolsEnd compare(const TestDirectory& dir, Arguments words) {
  words.insert(words.begin(), {"compare", "--parallelism", "--output", dir / "out"});
  return run_tools(dir, words);
}

TEST(CompareParallelism, EveryWayTrainsTheSameAndIsMeasured) {
  const TestDirectory dir;
  const ToolsEnd end = compare(
      dir, {"--steps", "2", "--rounds", "1", "--layers", "2", "--hidden", "32", "--heads", "4",
            "--vocabulary", "64", "--length", "32", "--calibrate", "--json", dir / "copy.json"});
  ASSERT_EQ(end.status.exit_code, 0) << end.err;
  const auto json = nlohmann::json::parse(dir.read("out/parallelism.json"));
  EXPECT_EQ(json, nlohmann::json::parse(dir.read("copy.json")));
  const auto& ways = json.at("ways");
  ASSERT_EQ(ways.size(), 11u);
  const double first = ways[0].at("runs")[0].at("first_loss"),
               last = ways[0].at("runs")[0].at("last_loss");
  EXPECT_LT(last, first);
  for (const auto& way : ways) {
    ASSERT_EQ(way.at("runs").size(), 1u);
    ASSERT_EQ(way.at("runs")[0].at("by_rank").size(), 4u);
    if (!way.at("experts").get<bool>()) {
      EXPECT_NEAR(way.at("runs")[0].at("first_loss"), first, 1e-5) << way.at("way");
      EXPECT_NEAR(way.at("runs")[0].at("last_loss"), last, 1e-4) << way.at("way");
    }
    const auto& measured = way.at("measured");
    EXPECT_GT(measured.at("activations"), 0) << way;
    EXPECT_GT(measured.at("pss"), 1e6) << way;
    EXPECT_GT(measured.at("step_ms"), 0) << way;
    EXPECT_GT(way.at("theory").at("step_ms"), 0) << "planned for this machine";
    EXPECT_EQ(way.at("theory").at("planned_ms").size(), 1U) << "one round";
    // Routers choose unevenly; and small tensors, of kilobytes in all, are not planned.
    const double bytes = measured.at("bytes"), planned = way.at("theory").at("bytes");
    const double within = way.at("experts").get<bool>() ? 0.2 : 0.02;
    EXPECT_NEAR(planned, bytes, within * bytes + 4e4) << way.at("way");
    EXPECT_EQ(way.at("theory").contains("bubble"), measured.contains("bubble"));
  }
  // The figures equal theory to the byte, since nothing divides unevenly here.
  const auto holds = [&](size_t i, const char* what, double within) {
    const double measured = ways[i].at("measured").at(what), theory = ways[i].at("theory").at(what);
    EXPECT_NEAR(measured, theory, within * theory) << ways[i].at("way") << " " << what;
  };
  holds(0, "parameters", 0);
  holds(0, "gradients", 0);
  holds(0, "state", 0.01);
  holds(0, "sent", 0.05);
  holds(1, "state", 0.02);
  holds(2, "parameters", 0.02);
  holds(4, "sent", 0.05);
  holds(3, "sent", 0.05);
  EXPECT_THAT(end.out, AllOf(HasSubstr("pipe=2,tensor=2"), HasSubstr("out/parallelism.html")));
  EXPECT_THAT(end.err, AllOf(HasSubstr("[1/12] this machine: started"),
                             HasSubstr("[2/12] data=4: started"), HasSubstr("[12/12] ")));
  EXPECT_THAT(dir.read("out/memory.svg"), HasSubstr("activations"));
  EXPECT_THAT(dir.read("out/parallelism.html"), HasSubstr("每个 rank 的内存"));
}

TEST(CompareParallelism, ARunThatFailsIsNamedAndTheRestGoOn) {
  const TestDirectory dir;
  const ToolsEnd end =
      compare(dir, {"--nproc", "2", "--timeout", "0.01", "--hardware", "xeon-8480"});
  EXPECT_EQ(end.status.exit_code, 1);
  EXPECT_THAT(end.err, AllOf(HasSubstr("pipe=2: failed: no end within"),
                             HasSubstr("lockstep compare: data=2 failed: no end within")));
  const auto json = nlohmann::json::parse(dir.read("out/parallelism.json"));
  EXPECT_EQ(json.at("left_out").size(), 3u);
  for (const auto& way : json.at("ways")) {
    EXPECT_GT(way.at("theory").at("step_ms"), 0) << "planned for the machine that was given";
    EXPECT_THAT(way.at("failure").get<std::string>(), HasSubstr("no end within"));
  }
}

TEST(CompareParallelism, BadInputIsOneLineBeforeAnythingStarts) {
  const TestDirectory dir;
  for (const auto& [words, line] :
       {std::pair{Arguments{"--nproc", "1"}, "--nproc is 1"},
        std::pair{Arguments{"--calibrate", "--hardware", "h100"}, "give one of them"},
        std::pair{Arguments{"--hardware", "nowhere.json"}, "nowhere.json"}}) {
    const ToolsEnd end = compare(dir, words);
    EXPECT_EQ(end.status.exit_code, 2);
    EXPECT_THAT(end.err, AllOf(HasSubstr("lockstep compare: "), HasSubstr(line)));
    EXPECT_EQ(std::count(end.err.begin(), end.err.end(), '\n'), 1) << end.err;
    EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  }
}

}  // namespace lockstep::inline v0::engine::parallelism_mp_test
