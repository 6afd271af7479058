#include "lockstep/report/pipeline_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::pipeline_picture_test {
namespace {

using ::testing::HasSubstr;

MeasuredPipeline measured_of(const char* schedule, double slow = 0) {
  const PlannedPipeline plan = plan_pipeline(schedule, {2, 4}, {2e-3, 1e-3, 1e-3, 0});
  auto actions = plan.timing.actions;
  actions[0].back().end += slow;
  return measured_pipeline(plan.schedule, actions, {3, 2});
}

TEST(PipelinePicture, MeasuredStandsBelowThePlanToOneScale) {
  const std::string svg = pipeline_svg(measured_of("1f1b", 4e-3));
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("1f1b: 2 stages, 4 micro-batches"));
  // 20 ms, of which 16 are work; one stage is then 4 ms late.
  EXPECT_THAT(svg, HasSubstr("planned with the mean times: "));
  EXPECT_THAT(svg, HasSubstr("bubble 25.0 % (formula: 25.0 %); stages hold at most 2, 1"));
  EXPECT_THAT(svg, HasSubstr("measured: "));
  EXPECT_THAT(svg, HasSubstr("stages held at most 3, 2"));
  EXPECT_THAT(svg, HasSubstr("time, ms"));
}

TEST(PipelinePicture, JsonThereAndBack) {
  for (const std::string& schedule : schedule_names()) {
    const auto json = pipeline_json(measured_of(schedule.c_str(), 1e-3));
    const MeasuredPipeline back = parse_measured_pipeline(json.dump(), "step.json");
    EXPECT_EQ(pipeline_json(back), json) << schedule;
    EXPECT_EQ(pipeline_svg(back), pipeline_svg(measured_of(schedule.c_str(), 1e-3)));
  }
}

TEST(PipelinePicture, AFileThatIsNoneIsSaidInOneLine) {
  const auto refusal = [](const std::string& text) {
    const std::string line =
        message_of<DataError>([&] { parse_measured_pipeline(text, "step.json"); });
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_THAT(line, HasSubstr("step.json is no "));
    return line;
  };
  EXPECT_THAT(refusal(""), HasSubstr("no JSON (at byte 1)"));
  EXPECT_THAT(refusal("{"), HasSubstr("no JSON (at byte 2)"));
  EXPECT_THAT(refusal("{}"), HasSubstr("no measured pipeline: "));
  auto json = pipeline_json(measured_of("1f1b"));
  json["measured"]["actions"][0].erase(1);
  EXPECT_THAT(refusal(json.dump()), HasSubstr("stage 0 ran"));
  json = pipeline_json(measured_of("1f1b"));
  json["actions"][1][0]["work"] = "X";
  EXPECT_THAT(refusal(json.dump()), HasSubstr("no work 'X'"));
  json = pipeline_json(measured_of("1f1b"));
  json["stage_of_chunk"] = {0, 7};
  EXPECT_THAT(refusal(json.dump()), HasSubstr("stage 1 has 0 chunks"));
  EXPECT_THAT(refusal(pipeline_json(measured_of("1f1b").planned).dump()), HasSubstr("measured"));
}

}  // namespace
}  // namespace lockstep::inline v0::pipeline_picture_test
