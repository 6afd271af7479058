#include "lockstep/plan/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/plan/pipeline_check.h"
#include "lockstep/plan/pipeline_timing.h"

namespace lockstep::inline v0::pipeline_schedule_test {
namespace {

using enum PipelineWork;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text_of(const PipelineSchedule& schedule, int stage) {
  std::string text;
  for (const PipelineAction& action : schedule.actions[static_cast<size_t>(stage)])
    text += (text.empty() ? "" : " ") + to_string(action);
  return text;
}

std::string refusal_of(const PipelineSchedule& schedule, const PipelineDiscipline& how = {}) {
  const std::string line = message_of<InvalidArgument>([&] { check_schedule(schedule, how); });
  EXPECT_EQ(line.find('\n'), std::string::npos);
  return line;
}

struct Case {
  std::string name;
  PipelineSize size;
};
// Every schedule for p in 1..8, m in 1..16, v in 1..3, as far as it goes with them.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      for (const char* name : {"gpipe", "1f1b", "zb-h1"}) cases.push_back({name, {p, m, 1}});
      cases.push_back({"zb-v", {p, m, 2}});
      cases.push_back({"interleaved", {p, m, 1}});
      for (int v = 2; v <= 3; ++v)
        if (m % std::max(1, m / p) == 0) cases.push_back({"interleaved", {p, m, v}});
    }
  }
  return cases;
}
std::string shown(const Case& one) {
  return one.name + " p " + std::to_string(one.size.stages) + " m " +
         std::to_string(one.size.micro_batches) + " v " + std::to_string(one.size.chunks);
}

TEST(PipelineSchedule, OrdersAreThePapers) {
  const auto stage = [](const char* name, int stage) {
    return text_of(make_schedule(name, {.stages = 3, .micro_batches = 4}), stage);
  };
  EXPECT_EQ(stage("gpipe", 1), "F0 F1 F2 F3 B0 B1 B2 B3");
  EXPECT_EQ(stage("1f1b", 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(stage("1f1b", 2), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(stage("zb-h1", 0), "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
  EXPECT_EQ(stage("zb-h1", 2), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
  const auto interleaved = make_schedule("interleaved", {.stages = 2, .micro_batches = 4});
  EXPECT_EQ(text_of(interleaved, 1), "F0 F1 F0 B0 F1 B1 F2 B0 F3 B1 F2 B2 F3 B3 B2 B3");
  EXPECT_THAT(interleaved.chunks_of(1), ElementsAre(1, 3));
  const auto there_and_back = make_schedule("zb-v", {.stages = 3, .micro_batches = 5});
  EXPECT_THAT(there_and_back.stage_of, ElementsAre(0, 1, 2, 2, 1, 0));
}

TEST(PipelineSchedule, AllAreWholeAndNoneWaitsForEver) {
  int checked = 0;
  for (const Case& one : all_cases()) {
    const PipelineSchedule schedule = make_schedule(one.name, one.size);
    // Posted one ahead or only when it is their turn; sends that nobody waits for.
    for (const int ahead : {0, 1, 3})
      EXPECT_NO_THROW(check_schedule(schedule, {.receives_ahead = ahead})) << shown(one);
    ++checked;
  }
  EXPECT_GT(checked, 800);
}

// Where every message goes one way round, a send that waits for its receive holds nobody up for ever.
TEST(PipelineSchedule, AFewSendsAtOnceAreEnoughForChains) {
  for (const Case& one : all_cases()) {
    const bool chain = one.size.chunks == 1;
    const PipelineSchedule schedule = make_schedule(one.name, one.size);
    EXPECT_NO_THROW(check_schedule(
        schedule, {.receives_ahead = 1, .most_sends = chain ? 1 : 2 * one.size.stages}))
        << shown(one);
  }
}

TEST(PipelineSchedule, PeaksAreThePapers) {
  int known = 0;
  for (const Case& one : all_cases()) {
    const PipelineSchedule schedule = make_schedule(one.name, one.size);
    const std::vector<int> peaks = peak_activations(schedule);
    for (int stage = 0; stage < schedule.stages; ++stage) {
      const int peak = peaks[static_cast<size_t>(stage)];
      known += expected_peak(schedule, stage) ? 1 : 0;
      EXPECT_EQ(peak, expected_peak(schedule, stage).value_or(peak))
          << shown(one) << " stage " << stage;
      if (one.name == "zb-v") {
        EXPECT_LE(peak, 2 * one.size.stages) << shown(one) << " stage " << stage;
      }
    }
    if (one.name == "1f1b" || one.name == "zb-h1") {
      EXPECT_LE(*std::max_element(peaks.begin(), peaks.end()), one.size.stages) << shown(one);
    }
  }
  EXPECT_GT(known, 1000);
}

PipelineTiming timed(const char* name, const PipelineSize& size, const PipelineTimes& times = {}) {
  return time_of(make_schedule(name, size), times);
}

TEST(PipelineTiming, BubblesAreThePapers) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      EXPECT_DOUBLE_EQ(timed("gpipe", {p, m}).bubble, (p - 1.0) / m) << p << " " << m;
      EXPECT_DOUBLE_EQ(timed("1f1b", {p, m}).bubble, (p - 1.0) / m) << p << " " << m;
    }
    for (int rounds = 1; rounds <= 3; ++rounds) {
      for (int v = 1; v <= 3; ++v) {
        // Whole numbers, so that sums are exact.
        const PipelineTimes times{.forward = 6, .backward_input = 6, .backward_weight = 6};
        EXPECT_NEAR(timed("interleaved", {p, rounds * p, v}, times).bubble,
                    (p - 1.0) / (v * rounds * p), 1e-15)
            << p << " " << rounds << " " << v;
      }
    }
    for (int m = p; m <= 16; ++m)
      EXPECT_DOUBLE_EQ(timed("zb-h1", {p, m}).bubble, timed("1f1b", {p, m}).bubble / 3)
          << p << " " << m;
  }
}

TEST(PipelineTiming, ZeroBubbleVHasNone) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 2 * p - 1; m <= 2 * p + 9; ++m) {
      const PipelineTiming timing = timed("zb-v", {p, m});
      EXPECT_DOUBLE_EQ(timing.inner_bubble, 0) << p << " " << m;
      // What is left of a step that all begin and end together: the way to the last stage.
      EXPECT_NEAR(timing.bubble, (p - 1) / (6.0 * m), 1e-12) << p << " " << m;
    }
    if (p > 1) {
      EXPECT_GT(timed("zb-h1", {p, 64}).bubble, timed("zb-v", {p, 64}).bubble);
    }
  }
}

TEST(PipelineTiming, ExpectedBubblesAreFound) {
  const PipelineTimes times;
  int found = 0;
  for (const Case& one : all_cases()) {
    const PipelineSchedule schedule = make_schedule(one.name, one.size);
    const auto expected = expected_bubble(schedule, times);
    if (!expected) continue;
    const PipelineTiming timing = time_of(schedule, times);
    EXPECT_NEAR(one.name == "zb-v" ? timing.inner_bubble : timing.bubble, *expected, 1e-12)
        << shown(one);
    ++found;
  }
  EXPECT_GT(found, 400);
}

TEST(PipelineTiming, StagesThatComputeShareTheProcessors) {
  // By hand: the first stage's first backward begins at 9, when its message is there. The last stage computes its second
  // one until 10 by itself, or until 11 where they share a processor.
  const PipelineSchedule two = make_schedule("gpipe", {.stages = 2, .micro_batches = 2});
  const std::vector<PipelineTimes> times = {
      {.forward = 1, .backward_input = 0.5, .backward_weight = 0.5, .communication = 1},
      {.forward = 2, .backward_input = 1, .backward_weight = 1, .communication = 1}};
  EXPECT_DOUBLE_EQ(time_of(two, times, 2).makespan, 12);
  EXPECT_DOUBLE_EQ(time_of(two, times, 1).makespan, 13);
  EXPECT_DOUBLE_EQ(time_of(two, times, 1).ideal, 8);
  EXPECT_THROW(time_of(two, times, 0), InvalidArgument);
}

TEST(PipelineTiming, FewerProcessorsTakeAsLongAsTheyMust) {
  const PipelineTimes chunk{
      .forward = 2, .backward_input = 3, .backward_weight = 1.5, .communication = 0};
  for (const Case& one : all_cases()) {
    const PipelineSchedule schedule = make_schedule(one.name, one.size);
    const std::vector<PipelineTimes> times(static_cast<size_t>(schedule.all_chunks()), chunk);
    const double alone = time_of(schedule, times).makespan;
    const double work = 6.5 * schedule.all_chunks() * schedule.micro_batches;
    const double stages = schedule.stages;
    // All but enough of them: the same as enough. One: it never waits.
    EXPECT_NEAR(time_of(schedule, times, stages * (1 - 1e-12)).makespan, alone, 1e-6 * alone)
        << shown(one);
    EXPECT_NEAR(time_of(schedule, times, 1).makespan, work, 1e-9 * work) << shown(one);
    if (stages < 3) continue;
    const double half = time_of(schedule, times, stages / 2).makespan;
    EXPECT_GE(half, std::max(alone, work / stages * 2) * (1 - 1e-9)) << shown(one);
    EXPECT_LE(half, (alone + work / stages * 2) * (1 + 1e-9)) << shown(one);
  }
}

TEST(PipelineTiming, NothingBeginsBeforeWhatItNeeds) {
  const PipelineTimes times{
      .forward = 2, .backward_input = 3, .backward_weight = 1.5, .communication = 0.25};
  for (const Case& one : all_cases()) {
    const PipelineSchedule schedule = make_schedule(one.name, one.size);
    const PipelineTiming timing = time_of(schedule, times);
    const auto end_of = [&](PipelineWork work, int chunk, int micro_batch) {
      for (const auto& actions : timing.actions)
        for (const TimedAction& timed : actions)
          if (timed.action == PipelineAction{work, chunk, micro_batch}) return timed.end;
      return -1.0;
    };
    for (size_t stage = 0; stage < timing.actions.size(); ++stage) {
      double free = 0;
      for (const TimedAction& timed : timing.actions[stage]) {
        EXPECT_GE(timed.start, free) << shown(one);
        free = timed.end;
      }
    }
    if (one.size.stages != 3 || one.size.micro_batches > 6) continue;
    for (const auto& actions : timing.actions) {
      for (const TimedAction& timed : actions) {
        const auto message = received_by(schedule, timed.action);
        if (!message) continue;
        const bool same = schedule.stage_of[static_cast<size_t>(message->from)] ==
                          schedule.stage_of[static_cast<size_t>(message->to)];
        const double given = std::max(
            {end_of(message->forward() ? kForward : kBackward, message->from, message->micro_batch),
             end_of(message->forward() ? kForward : kBackwardInput, message->from,
                    message->micro_batch)});
        EXPECT_GE(timed.start, given + (same ? 0 : 0.25)) << shown(one);
        EXPECT_GE(given, 0) << shown(one);
      }
    }
  }
}

TEST(PipelineTiming, CommunicationAndUnequalTimesCostWhatTheyMust) {
  EXPECT_DOUBLE_EQ(timed("1f1b", {2, 1}, {.communication = 0.5}).makespan, 2 * 3 + 2 * 0.5);
  EXPECT_DOUBLE_EQ(timed("gpipe", {3, 2}, {2, 1, 1, 0}).makespan, (2 + 2) * (2 + 2));
  EXPECT_THAT(message_of<InvalidArgument>([] { timed("1f1b", {2, 1}, {.forward = -1}); }),
              HasSubstr("none of them negative"));
  EXPECT_THAT(message_of<InvalidArgument>([] { timed("1f1b", {2, 1}, {0, 0, 0, 1}); }),
              HasSubstr("not all of them 0"));
}

TEST(PipelineSchedule, MistakesAreOneLine) {
  const auto line = [](const char* name, const PipelineSize& size) {
    return message_of<InvalidArgument>([&] { make_schedule(name, size); });
  };
  EXPECT_EQ(line("1f1", {2, 2}),
            "no pipeline schedule '1f1' (did you mean 1f1b?); give one of gpipe, 1f1b, "
            "interleaved, zb-h1, zb-v");
  EXPECT_EQ(line("interleaved", {4, 9, 2}),
            "pipeline schedule interleaved: 9 micro-batches on 4 stages go round in 2 groups, "
            "which they do not divide into; give a multiple of the stages, such as 12");
  EXPECT_THAT(line("zb-v", {4, 8, 3}), HasSubstr("3 chunks a stage; give 2"));
  EXPECT_THAT(line("1f1b", {4, 8, 2}), HasSubstr("2 chunks a stage; give 1"));
  EXPECT_THAT(line("gpipe", {0, 8}), HasSubstr("0 stages and 8 micro-batches"));
  EXPECT_THAT(line("interleaved", {2, 4, -1}), HasSubstr("-1 chunks a stage; give at least 1"));
}

TEST(PipelineCheck, NamesWhatIsWrong) {
  const PipelineSchedule good = make_schedule("1f1b", {.stages = 2, .micro_batches = 2});
  EXPECT_EQ(refusal_of(good), "no exception");

  PipelineSchedule bad = good;
  bad.actions[1].pop_back();
  EXPECT_EQ(refusal_of(bad),
            "pipeline schedule 1f1b: stage 1 does not run micro-batch 1 of chunk 1 forward and "
            "backward");
  bad = good;
  bad.actions[0].push_back({kForward, 0, 1});
  EXPECT_THAT(refusal_of(bad), HasSubstr("stage 0 runs F1 twice"));
  bad = good;
  bad.actions[0].push_back({kForward, 1, 1});
  EXPECT_THAT(refusal_of(bad), HasSubstr("stage 0 runs F1 of chunk 1, which it does not have"));
  bad = good;
  std::swap(bad.actions[1][0], bad.actions[1][1]);
  EXPECT_THAT(refusal_of(bad), HasSubstr("stage 1 runs B0 before its forward"));
  bad = good;
  bad.actions[1] = {{kForward, 1, 1}, {kBackward, 1, 1}, {kForward, 1, 0}, {kBackward, 1, 0}};
  EXPECT_EQ(
      refusal_of(bad),
      "pipeline schedule 1f1b: stage 0 runs B0 where chunk 1 sends micro-batch 1; run them in "
      "the order in which they are sent");
  bad = good;  // stage 0 wants a gradient before it has given what that is a gradient of
  bad.actions[0] = {{kForward, 0, 0}, {kBackward, 0, 0}, {kForward, 0, 1}, {kBackward, 0, 1}};
  EXPECT_EQ(refusal_of(bad), "no exception") << "slow, but not for ever";
  bad.actions[1] = {{kForward, 1, 0}, {kForward, 1, 1}, {kBackward, 1, 0}, {kBackward, 1, 1}};
  EXPECT_EQ(refusal_of(bad),
            "pipeline schedule 1f1b: stage 0 waits for ever before B0 for chunk 1");
  bad = make_schedule("zb-h1", {.stages = 2, .micro_batches = 2});
  std::erase(bad.actions[0], PipelineAction{kBackwardWeight, 0, 1});
  EXPECT_THAT(refusal_of(bad), HasSubstr("stage 0 does not run micro-batch 1"));
  bad = good;
  bad.stage_of = {0, 0};
  EXPECT_THAT(refusal_of(bad), HasSubstr("stage 0 has 2 chunks of the model; give it 1"));
}

// Stages that send to each other before either posts its receive.
TEST(PipelineCheck, SendsThatWaitForEachOtherAreSeen) {
  const PipelineSchedule schedule = make_schedule("zb-v", {.stages = 5, .micro_batches = 8});
  EXPECT_EQ(refusal_of(schedule, {.receives_ahead = 0, .most_sends = 0}), "no exception");
  EXPECT_THAT(refusal_of(schedule, {.receives_ahead = 1, .most_sends = 1}),
              HasSubstr("sends to be received; let more of them wait"));
  EXPECT_THAT(refusal_of(schedule, {.receives_ahead = -1}), HasSubstr("give 0 or more"));
}

}  // namespace
}  // namespace lockstep::inline v0::pipeline_schedule_test
