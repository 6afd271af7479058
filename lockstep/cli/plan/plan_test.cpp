// Tests `lockstep plan`: its drawings, and its errors for wrong flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "lockstep/cli/plan/command.h"
#include "lockstep/cli/plan/pictures.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/report/pipeline_picture.h"

namespace lockstep::inline v0::cli {
namespace plan_test {

using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

std::string refusal_of(const Words& words) {
  const std::string line = message_of<InvalidArgument>([&] { plan_command(words); });
  EXPECT_EQ(line.find('\n'), std::string::npos);
  return line;
}

TEST(PlanCommand, DrawsTheScheduleInText) {
  const std::string text = text_of(plan_pipeline("1f1b", {3, 4}, {}));
  EXPECT_THAT(text,
              HasSubstr("1f1b: 3 stages, 4 micro-batches; forward 1, backward 1 for inputs "
                        "and 1 for weights\n\n"
                        "stage 0 | F0 F1 F2 ............B0    F3 B1    ...B2    ...B3\n"
                        "stage 1 | ...F0 F1 ......B0    F2 B1    F3 B2    ...B3    ......\n"
                        "stage 2 | ......F0 B0    F1 B1    F2 B2    F3 B3    ............\n"));
  EXPECT_THAT(text, HasSubstr("time 18, of which 12 are work; bubble 50.0 % (theory: 50.0 %)"));
  EXPECT_THAT(text, HasSubstr("    1       1  33.3 %              2       2\n"));
}

TEST(PlanCommand, NamesChunksAndStaysWithinItsColumns) {
  const PlannedPipeline small = plan_pipeline("zb-v", {2, 3}, {});
  EXPECT_THAT(text_of(small), HasSubstr("stage 1 | ....F0a F0b F1a "));
  EXPECT_THAT(text_of(small), HasSubstr("through chunk a, b, ... of the stage"));
  // Sentences wrap at the terminal's width, too.
  std::istringstream sentences(text_of(small, 70));
  for (std::string line; std::getline(sentences, line);) EXPECT_LE(line.size(), 70u) << line;
  std::istringstream lines(text_of(plan_pipeline("zb-h1", {12, 8}, {}), 60));
  int drawn = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("stage ") || line.find('|') == std::string::npos) continue;
    ++drawn;
    EXPECT_LE(line.size(), 60u) << line;
    EXPECT_THAT(line, ::testing::MatchesRegex("stage +[0-9]+ \\| [.FIW]+"))
        << "letters alone where numbers have no room";
  }
  EXPECT_EQ(drawn, 12);
  EXPECT_THAT(text_of(plan_pipeline("zb-h1", {12, 64}, {}), 60),
              HasSubstr("\n\nToo long for 60 columns; --svg draws it.\n\ntime 203"));
}

TEST(PlanCommand, ComparesSchedules) {
  const std::string table =
      comparison_of({plan_pipeline("1f1b", {4, 8}, {}), plan_pipeline("zb-h1", {4, 8}, {})});
  EXPECT_THAT(table, HasSubstr("1f1b"));
  EXPECT_THAT(table, HasSubstr("37.5 %"));
  EXPECT_THAT(table, HasSubstr("12.5 %"));
}

TEST(PlanCommand, WritesAPictureAndJson) {
  const TestDirectory directory;
  EXPECT_EQ(plan_command({"--schedule", "zb-h1", "--stages", "4", "--micro-batches", "8", "--svg",
                          (directory / "plan.svg").string(), "--json",
                          (directory / "plan.json").string()}),
            0);
  const std::string svg = directory.read("plan.svg");
  EXPECT_THAT(svg, HasSubstr("zb-h1: 4 stages, 8 micro-batches; bubble 12.5 %"));
  EXPECT_THAT(svg, HasSubstr("backward of weights"));
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  size_t boxes = 0;
  for (size_t at = 0; (at = svg.find("fill-opacity", at)) != std::string::npos; ++at) ++boxes;
  EXPECT_EQ(boxes, 4u * 8 * 3 + 3) << "one for each action, and the legend's";
  const auto json = nlohmann::json::parse(directory.read("plan.json"));
  EXPECT_EQ(json["schedule"], "zb-h1");
  EXPECT_EQ(json["makespan"], 27);
  EXPECT_EQ(json["bubble"], json["expected_bubble"]);
  EXPECT_EQ(json["actions"].size(), 4u);
  EXPECT_EQ(json["actions"][0].size(), 24u);
  EXPECT_EQ(json["actions"][3][0]["start"], 3);
  EXPECT_EQ(json["peak_activations"], json["expected_peak_activations"]);
}

// A plan in place of a measurement, in seconds, with one stage late.
MeasuredPipeline measured_step() {
  const PlannedPipeline plan = plan_pipeline("zb-h1", {2, 4}, {1e-3, 1e-3, 1e-3, 0});
  auto actions = plan.timing.actions;
  actions[0].back().end += 2e-3;
  return measured_pipeline(plan.schedule, actions, {2, 1});
}

TEST(PlanCommand, DrawsWhatWasMeasuredBelowThePlan) {
  const TestDirectory directory;
  directory.write("step.json", pipeline_json(measured_step()).dump());
  EXPECT_EQ(plan_command({"--measured", (directory / "step.json").string(), "--svg",
                          (directory / "step.svg").string(), "--json",
                          (directory / "again.json").string()}),
            0);
  const std::string svg = directory.read("step.svg");
  EXPECT_THAT(svg, HasSubstr("planned with the mean times"));
  EXPECT_THAT(svg, HasSubstr("measured: "));
  size_t boxes = 0;
  for (size_t at = 0; (at = svg.find("fill-opacity", at)) != std::string::npos; ++at) ++boxes;
  EXPECT_EQ(boxes, 2u * 2 * 4 * 3 + 3) << "each action twice, and the legend's";
  EXPECT_EQ(nlohmann::json::parse(directory.read("again.json")),
            nlohmann::json::parse(directory.read("step.json")));
  const std::string text = text_of(measured_step());
  EXPECT_THAT(text, HasSubstr("zb-h1: 2 stages, 4 micro-batches; in the mean forward 1.000 ms"));
  EXPECT_THAT(text, HasSubstr("measured  15.000"));
  EXPECT_THAT(text, HasSubstr("formula"));
}

TEST(PlanCommand, MistakesAreOneLine) {
  EXPECT_THAT(refusal_of({"--measured", "/nowhere/step.json"}),
              HasSubstr("--measured: cannot read /nowhere/step.json"));
  const TestDirectory folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of({"--measured", folder / "fifo"}), HasSubstr("it is no ordinary file"));
  EXPECT_THAT(refusal_of({"--measured", "step.json", "--stages", "4"}), HasSubstr("--stages"));
  EXPECT_THAT(refusal_of({"--schedule", "1f1b"}), HasSubstr("--stages is required"));
  EXPECT_THAT(refusal_of({"--stages", "4", "--micro-batches", "8", "--schedule", "zb-h2"}),
              HasSubstr("no pipeline schedule 'zb-h2' (did you mean zb-h1?)"));
  EXPECT_THAT(refusal_of({"--stages", "4", "--micro-bathes", "8"}),
              HasSubstr("unknown option --micro-bathes (did you mean --micro-batches?)"));
  EXPECT_THAT(refusal_of({"--stages", "4"}), HasSubstr("--micro-batches is required"));
  EXPECT_THAT(refusal_of({"--stages", "4", "--micro-batches", "8", "--schedule", "interleaved",
                          "--chunks", "27"}),
              HasSubstr("--chunks"));
  for (const char* times :
       {"1,1", "1,1,1,1", "1,a,1", "0,0,0", "1,-1,1", "1,1,inf", "1e-310,0,0"}) {
    EXPECT_THAT(refusal_of({"--stages", "2", "--micro-batches", "2", "--times", times}),
                HasSubstr("three times that are not all 0"))
        << times;
  }
  EXPECT_THAT(refusal_of({"--stages", "2", "--micro-batches", "2", "--svg", "x.svg"}),
              HasSubstr("give --schedule, one of gpipe"));
  EXPECT_THAT(refusal_of({"--stages", "2", "--micro-batches", "2", "--schedule", "1f1b", "--json",
                          "/nowhere/plan.json"}),
              HasSubstr("/nowhere"));
  EXPECT_THAT(refusal_of({"--stages", "2", "--micro-batches", "2", "--communication", "nan"}),
              HasSubstr("--communication is no time"));
  EXPECT_THAT(refusal_of({"--stages", "512", "--micro-batches", "4096", "--schedule", "interleaved",
                          "--chunks", "26"}),
              HasSubstr("multiply to 54525952; give 200000 at most"));
  EXPECT_THAT(plan_help(), HasSubstr("--micro-batches"));
}

}  // namespace plan_test
}  // namespace lockstep::inline v0::cli
