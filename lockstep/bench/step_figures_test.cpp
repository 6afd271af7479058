#include "lockstep/bench/step_figures.h"

#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::bench::bench_step_figures_test {
namespace {

StepTurn turn_of(std::initializer_list<double> forwards, double wait = 0) {
  StepTurn turn;
  for (const double ms : forwards) turn.steps.push_back({.forward = ms, .wait = wait});
  turn.pss_bytes = 1 << 20;
  return turn;
}

TEST(StepFigures, ATurnSurvivesItsLine) {
  StepTurn turn;
  turn.steps = {{1, 2, 3, 4, 5, 6}, {.backward = 0.5}};
  turn.pss_bytes = 12345;
  const StepTurn back = parse_turn_line(to_line(turn));
  ASSERT_EQ(back.steps.size(), 2u);
  EXPECT_EQ(back.steps[0].total(), 21);
  EXPECT_EQ(back.steps[0].averaging, 4);
  EXPECT_EQ(back.steps[1].backward, 0.5);
  EXPECT_EQ(back.pss_bytes, 12345);
  EXPECT_EQ(to_line(turn).find('\n'), std::string::npos);
  EXPECT_THROW(parse_turn_line("Traceback"), InvalidArgument);
}

TEST(StepFigures, AStepIsTheMeanOverItsProcessesAndRatiosAreOfRounds) {
  // Two processes; the first contender's steps take 4, 4 and 8, 8.
  const StepSeries first{
      "ddp", 2, 10, {{turn_of({1, 3}, 2), turn_of({3, 1}, 2)}, {turn_of({8, 9}), turn_of({8, 7})}}};
  const StepSeries single{"single", 1, 10, {{turn_of({2, 2})}, {turn_of({8, 8})}}};
  const auto rows = make_step_rows("simple-cnn", {first, single});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("steps"), 4);
  EXPECT_DOUBLE_EQ(rows[0].at("ms_per_step"), 6);  // between 4 and 8
  EXPECT_DOUBLE_EQ(rows[0].at("samples_per_s"), 20 * 1000.0 / 6);
  EXPECT_DOUBLE_EQ(rows[0].at("parts_ms").at("wait"), 1);
  EXPECT_DOUBLE_EQ(rows[0].at("pss_bytes"), 2 << 20);
  EXPECT_DOUBLE_EQ(rows[0].at("times_first"), 1);
  // Half the samples in half the time, then in the same time.
  EXPECT_DOUBLE_EQ(rows[1].at("times_first_low"), 0.5);
  EXPECT_DOUBLE_EQ(rows[1].at("times_first_high"), 1);
  EXPECT_DOUBLE_EQ(rows[1].at("times_first"), 0.75);

  EXPECT_NE(step_table(rows).find("times ddp"), std::string::npos);
  EXPECT_NE(step_svg(rows).find("simple-cnn"), std::string::npos);
  EXPECT_EQ(rows[1].at("strategy"), "single");
}

}  // namespace
}  // namespace lockstep::inline v0::bench::bench_step_figures_test
