#include "lockstep/plan/pipeline_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::pipeline_plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<PipelineSchedule> schedules() {
  std::vector<PipelineSchedule> all;
  for (const std::string& name : schedule_names()) all.push_back(make_schedule(name, {3, 6}));
  return all;
}

// A plan taken for what was measured, each stage's clock at another hour.
std::vector<std::vector<TimedAction>> by_own_clocks(const PlannedPipeline& plan) {
  auto actions = plan.timing.actions;
  for (size_t stage = 0; stage < actions.size(); ++stage) {
    for (TimedAction& timed : actions[stage]) {
      timed.start += 5 - 40.0 * static_cast<double>(stage);
      timed.end += 5 - 40.0 * static_cast<double>(stage);
    }
  }
  return actions;
}

TEST(MeasuredPipeline, APlanMeasuredIsThePlan) {
  for (const PipelineSchedule& schedule : schedules()) {
    const PlannedPipeline plan = plan_pipeline(schedule, {2, 1.5, 1.5, 0});
    const MeasuredPipeline measured =
        measured_pipeline(schedule, plan.timing.actions, std::vector<int>(3, 1));
    EXPECT_NEAR(measured.timing.makespan, plan.timing.makespan, 1e-9) << schedule.name;
    EXPECT_NEAR(measured.timing.ideal, plan.timing.ideal, 1e-9);
    EXPECT_NEAR(measured.timing.bubble, plan.timing.bubble, 1e-9);
    EXPECT_NEAR(measured.timing.inner_bubble, plan.timing.inner_bubble, 1e-9);
    EXPECT_NEAR(measured.planned.times.forward, 2, 1e-9);
    EXPECT_NEAR(measured.planned.times.backward_input, 1.5, 1e-9);
    EXPECT_NEAR(measured.planned.times.backward_weight, 1.5, 1e-9);
    EXPECT_NEAR(measured.planned.timing.makespan, plan.timing.makespan, 1e-9);
  }
}

TEST(MeasuredPipeline, ClocksAreSetSoThatMessagesComeAfterTheyWereSent) {
  for (const PipelineSchedule& schedule : schedules()) {
    const PlannedPipeline plan = plan_pipeline(schedule, {});
    const MeasuredPipeline measured =
        measured_pipeline(schedule, by_own_clocks(plan), std::vector<int>(3, 1));
    // Stage 0's first action is the first of all; a later stage's first comes right behind what it waits for.
    for (size_t stage = 0; stage < 3; ++stage)
      EXPECT_NEAR(measured.timing.actions[stage].front().start,
                  plan.timing.actions[stage].front().start, 1e-9)
          << schedule.name << " " << stage;
    EXPECT_NEAR(measured.timing.makespan, plan.timing.makespan, 1e-9);
  }
}

TEST(MeasuredPipeline, AStepOfFewerMicroBatches) {
  const PipelineSchedule schedule = make_schedule("1f1b", {2, 8});
  const PlannedPipeline shorter = plan_pipeline("1f1b", {2, 3}, {});
  const PlannedPipeline plan = plan_pipeline(schedule, {});
  auto actions = plan.timing.actions;
  for (auto& of_stage : actions)
    std::erase_if(of_stage, [](const TimedAction& timed) { return timed.action.micro_batch >= 3; });
  const MeasuredPipeline measured = measured_pipeline(schedule, actions, {2, 1});
  EXPECT_EQ(measured.planned.schedule.micro_batches, 3);
  EXPECT_NEAR(measured.planned.timing.makespan, shorter.timing.makespan, 1e-9);
  EXPECT_THAT(measured.most_held, ElementsAre(2, 1));
}

TEST(MeasuredPipeline, WhatWasNotTheScheduleIsRefused) {
  const PipelineSchedule schedule = make_schedule("1f1b", {2, 2});
  const auto plan = plan_pipeline(schedule, {}).timing.actions;
  const auto refusal = [&](const std::vector<std::vector<TimedAction>>& actions) {
    const std::string line =
        message_of<InvalidArgument>([&] { measured_pipeline(schedule, actions, {1, 1}); });
    EXPECT_EQ(line.find('\n'), std::string::npos);
    return line;
  };
  auto actions = plan;
  std::swap(actions[1][1], actions[1][2]);
  EXPECT_THAT(refusal(actions), HasSubstr("stage 1 ran F1 where the schedule has B0"));
  actions = plan;
  actions[0].pop_back();
  EXPECT_THAT(refusal(actions), HasSubstr("stage 0 ran nothing where the schedule has B1"));
  actions = plan;
  actions[0][1].end = 0.5;
  EXPECT_THAT(refusal(actions), HasSubstr("stage 0: F1 begins before"));
  // Stage 1 says that it had sent B0's gradient sooner after F0's rows came than stage 0 says it took.
  actions = plan;
  actions[0][2].start = actions[0][1].end;
  EXPECT_THAT(refusal(actions), HasSubstr("no clocks can have"));
  EXPECT_THAT(refusal({plan[0]}), HasSubstr("1 stages' actions"));
}

}  // namespace
}  // namespace lockstep::inline v0::pipeline_plan_test
