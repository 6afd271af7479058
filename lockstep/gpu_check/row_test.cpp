#include "lockstep/gpu_check/row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/gpu_check/contest.h"

namespace lockstep::inline v0::gpu_check {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Row, ComesBackFromAProcesssOutput) {
  const Row row{"ddp", "a | b", Outcome::kFailed, "two\nlines", {{"ms", 1.5}}};
  const Output output = take_rows("a warning\n" + to_line(row) + "\nand another\n" +
                                  to_line({"ddp", "c", Outcome::kSkipped, "why"}) + "\n");
  EXPECT_EQ(output.rest, "a warning\nand another\n");
  ASSERT_EQ(output.rows.size(), 2u);
  EXPECT_EQ(to_json(output.rows[0]), to_json(row));
  EXPECT_EQ(output.rows[1].outcome, Outcome::kSkipped);
}

TEST(Row, OneThatWasCutOffIsNone) {
  const std::string line = to_line({"ddp", "c", Outcome::kOk, "text"});
  EXPECT_TRUE(take_rows(line.substr(0, line.size() - 3)).rows.empty());
}

TEST(Row, BytesThatAreNoTextDoNotStopIt) {
  EXPECT_EQ(take_rows(to_line({"machine", "card", Outcome::kOk, "\xff\xfe"})).rows.size(), 1u);
}

TEST(Row, ATableHasALineARow) {
  const std::string table = to_table(
      {{"ddp", "a | b", Outcome::kFailed, "two\nlines"}, {"ddp", "c", Outcome::kOk, "well"}});
  EXPECT_THAT(table, HasSubstr("| ddp | a \\| b | **failed** | two lines |\n"));
  EXPECT_THAT(table, HasSubstr("|  | c | ok | well |\n"));
}

TEST(Row, LastWordsAreTheLastLinesThatSaySomething) {
  EXPECT_EQ(last_words("a\nb\n\n  \nc\n"), "b / c");
  EXPECT_EQ(last_words("\n"), "");
}

TEST(StepCases, ComeBackFromJson) {
  for (const bool small : {false, true}) {
    for (const StepCase& one : step_cases(small)) {
      const nlohmann::json json = one;
      EXPECT_EQ(nlohmann::json(json.get<StepCase>()), json) << one.name;
    }
  }
}

// A language model of 124 million parameters on 16 x 1024 tokens: about 6 operations a parameter and
// token, and the scores.
TEST(StepCases, OperationsOfAStepAreThoseOfItsProducts) {
  for (const StepCase& one : step_cases(false)) {
    if (one.name == "LM 124M bf16 16 x 1024") {
      EXPECT_NEAR(flop_of_step(one), 6 * 123.5e6 * 16384 + 6.0 * 12 * 768 * 1024 * 16384, 3e10);
    }
    EXPECT_EQ(flop_of_step(one) > 0, one.kind != "simple-cnn") << one.name;
  }
}

}  // namespace
}  // namespace lockstep::inline v0::gpu_check
