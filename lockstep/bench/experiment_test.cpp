#include "lockstep/bench/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::inline v0::bench::experiment_test {
namespace {

using ::testing::ElementsAre;

struct Diary final : TurnWatcher {
  void begins(const Turn& turn) override {
    lines.push_back(turn.job + " " + std::to_string(turn.round) + "/" +
                    std::to_string(turn.rounds) + " " + std::to_string(turn.number) + "/" +
                    std::to_string(turn.all));
  }
  void ended(const Turn& turn, const std::string& found) override {
    lines.push_back(turn.job + ": " + found);
  }
  void failed(const Turn& turn, const Error& error) override {
    lines.push_back(turn.job + " failed: " + error.what());
    if (strict) throw;
  }
  std::vector<std::string> lines;
  bool strict = false;
};

std::vector<Job> two(int& turns) {
  return {{"a",
           [&turns]() -> std::string {
             if (++turns == 2) throw Error("broke");
             return "fine";
           }},
          {"b", [] { return std::string("two"); }}};
}

TEST(Experiment, JobsTakeTurnsAndOneThatHasFailedHasNoOther) {
  int turns = 0;
  Diary diary;
  run_experiment(two(turns), 3, diary);
  EXPECT_THAT(diary.lines,
              ElementsAre("a 1/3 1/6", "a: fine", "b 1/3 2/6", "b: two", "a 2/3 3/6",
                          "a failed: broke", "b 2/3 4/6", "b: two", "b 3/3 6/6", "b: two"));
}

TEST(Experiment, AWatcherMayEndIt) {
  int turns = 0;
  Diary diary;
  diary.strict = true;
  EXPECT_THROW(run_experiment(two(turns), 3, diary), Error);
  EXPECT_EQ(diary.lines.back(), "a failed: broke");
  TurnWatcher plain;
  turns = 0;
  EXPECT_THROW(run_experiment(two(turns), 3, plain), Error);
}

}  // namespace
}  // namespace lockstep::inline v0::bench::experiment_test
