#include "lockstep/bench/experiment_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::bench::experiment_record_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ExperimentRecord : public ::testing::Test {
 protected:
  void put_folder(const std::string& name) {
    std::filesystem::create_directory(dir_ / name);
    dir_.write(name + "/log.txt", name);
  }
  std::optional<std::string> make_room(const std::vector<std::string>& names) {
    return make_room_for_experiment(dir_.path(), "compare", names);
  }
  TestDirectory dir_;
};

TEST_F(ExperimentRecord, WhatAFormerOneHasWrittenMovesAndNothingElse) {
  put_folder("mine");  // a user's, with a log as jobs have
  EXPECT_FALSE(make_room({"ddp", "comparison.json"}));
  put_folder("ddp");
  dir_.write("comparison.json", "{}");
  EXPECT_THAT(make_room({"zero1", "comparison.json"}).value_or(""),
              HasSubstr((dir_ / "previous").string()));
  EXPECT_THAT(dir_.names(), ElementsAre("experiment.json", "mine", "previous"));
  EXPECT_EQ(dir_.read("previous/ddp/log.txt"), "ddp");
  EXPECT_THAT(dir_.read("previous/experiment.json"), HasSubstr("\"ddp\""));
  // The second has ended before it wrote anything.
  EXPECT_FALSE(make_room({"ddp"}));
  EXPECT_THAT(dir_.names(), ElementsAre("experiment.json", "mine", "previous"));
}

TEST_F(ExperimentRecord, WhatIsThereOtherwiseIsRefused) {
  put_folder("ddp");
  const auto refused = [&] {
    return message_of<InvalidArgument>([&] { make_room({"single", "ddp"}); });
  };
  const auto names = [&] {
    return AllOf(HasSubstr((dir_ / "ddp").string() + " is there"), HasSubstr("--output"));
  };
  EXPECT_THAT(refused(), names());
  EXPECT_THAT(dir_.names(), ElementsAre("ddp"));
  // A record counts as little if it is another experiment's, or names files elsewhere.
  for (const char* record : {R"({"experiment": "verify", "writes": ["ddp"]})", "no JSON"}) {
    dir_.write("experiment.json", record);
    EXPECT_THAT(refused(), names());
  }
  dir_.write("experiment.json", R"({"experiment": "compare", "writes": ["../x", "", "..", 3]})");
  EXPECT_THAT(refused(), names());
}

}  // namespace
}  // namespace lockstep::inline v0::bench::experiment_record_test
