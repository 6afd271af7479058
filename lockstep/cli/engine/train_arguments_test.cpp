#include "lockstep/cli/engine/train_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::engine::train_arguments_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

TrainPlan plan(const Arguments& arguments, std::optional<int> ranks = {}) {
  return make_train_plan(parse_train_arguments(arguments), ranks);
}

TEST(TrainArguments, OptionsWinOverTheFileTheFileOverDefaults) {
  const TestDirectory dir;
  dir.write("c.json", R"({"epochs": 5, "lr": 0.5, "data": "d"})");
  const TrainPlan made = plan(
      {"mnist", "--config", dir / "c.json", "--epochs=3", "--batch_size", "7", "--dropout", "0"});
  EXPECT_EQ(made.config.epochs, 3);
  EXPECT_EQ(made.config.lr, 0.5);
  EXPECT_EQ(made.config.batch_size, 7);
  EXPECT_EQ(made.config.dropout1, 0);
  EXPECT_EQ(made.config.dropout2, 0);
  EXPECT_EQ(made.config.data, (std::filesystem::current_path() / "d").string());
  EXPECT_FALSE(made.digits);
}

TEST(TrainArguments, TheLastOfAnOptionCounts) {
  EXPECT_EQ(plan({"mnist", "--data", "d", "--nproc", "2", "--nproc", "4"}).config.batch_size, 32);
}

TEST(TrainArguments, DigitsLieUnderTheOutput) {
  const TrainPlan made = plan({"mnist", "--data", "digits", "--output", "/o"});
  EXPECT_TRUE(made.digits);
  EXPECT_EQ(made.config.data, "/o/data");
}

TEST(TrainArguments, MistakesAreOneLine) {
  const auto from = [](Arguments arguments) { return error_of([&] { plan(arguments); }); };
  EXPECT_THAT(from({}), HasSubstr("see lockstep train --help"));
  EXPECT_THAT(from({"cifar"}), HasSubstr("no recipe 'cifar'"));
  EXPECT_THAT(from({"mnist"}), HasSubstr("--data is missing"));
  EXPECT_THAT(from({"mnist", "--data", "d", "--epochs", "x"}), HasSubstr("--epochs is 'x'"));
  EXPECT_THAT(from({"mnist", "--data", "d", "--epohcs", "1"}), HasSubstr("--epohcs"));
  EXPECT_THAT(from({"mnist", "--data", "d", "--nproc", "0"}), HasSubstr("nproc is 0"));
  EXPECT_THAT(from({"mnist", "--data", "d", "--strategy", "x"}),
              HasSubstr("choose ddp, average, ring or naive-ring"));
  EXPECT_THAT(from({"mnist", "--config", "/none.json"}), HasSubstr("cannot read /none.json"));
}

TEST(TrainArguments, ALaunchersRanksCount) {
  EXPECT_EQ(plan({"mnist", "--data", "d"}, 4).config.nproc, 4);
  EXPECT_EQ(plan({"mnist", "--data", "d", "--nproc", "4"}, 4).config.nproc, 4);
  EXPECT_THAT(error_of([] { plan({"mnist", "--data", "d", "--nproc", "2"}, 4); }),
              HasSubstr("a launcher has started 4"));
}

TEST(TrainArguments, ResumeTakesTheRecordedSettings) {
  const TestDirectory dir;
  const Arguments resume{"mnist", "--output", dir.path(), "--resume"};
  EXPECT_THAT(error_of([&] { plan(resume); }), HasSubstr("has no checkpoints/last to resume"));
  Checkpoint checkpoint;
  TrainConfig config;
  config.data = "/d";
  config.output = "/elsewhere";
  config.nproc = 2;
  config.batch_size = 64;
  config.lr = 0.25;
  checkpoint.config_json = to_json(config);
  checkpoint.trainer_json = "{}";
  write_checkpoint(RunFolder{dir.path()}.last(), checkpoint);
  EXPECT_EQ(plan(resume).config.lr, 0.25);
  EXPECT_EQ(plan(resume).config.nproc, 2);
  EXPECT_EQ(plan(resume).config.output, dir.path());
  Arguments more = resume;
  more.insert(more.end(), {"--epochs", "20"});
  EXPECT_EQ(plan(more).config.epochs, 20);
  more.insert(more.end(), {"--lr", "0.5"});
  EXPECT_THAT(error_of([&] { plan(more); }),
              HasSubstr("cannot resume: lr was 0.25 and is now 0.5"));
}

TEST(TrainArguments, InputIsCheckedBeforeAnythingStarts) {
  const TestDirectory dir;
  const auto check = [&](const Arguments& more) {
    Arguments arguments{"mnist", "--output", dir / "out"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return error_of([&] {
      const TrainArguments parsed = parse_train_arguments(arguments);
      check_train_input(make_train_plan(parsed, std::nullopt), parsed);
    });
  };
  EXPECT_THAT(check({"--data", dir / "none"}), HasSubstr("none"));
  EXPECT_THAT(check({"--data", dir / "none", "--json", "/nowhere/x.json"}),
              HasSubstr("/nowhere/x.json"));
  dir.write("file", "");
  EXPECT_THAT(check({"--data", dir / "none", "--output", dir / "file"}),
              HasSubstr("give a directory that can be written"));
  EXPECT_EQ(check({"--data", "digits"}), "no error");
  EXPECT_THAT(check({"--data", "digits", "--init-from", dir / "file"}), HasSubstr("too short"));
  EXPECT_THAT(check({"--data", "digits", "--nproc", "12001", "--batch-size", "1"}),
              HasSubstr("more ranks than the 12000 samples"));
  dir.write("out/data/t10k-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\x05"
                                                           "ab",
                                                           10));
  EXPECT_THAT(check({"--data", dir / "out/data"}),
              AllOf(HasSubstr("t10k-labels-idx1-ubyte"), HasSubstr("truncated")));
}

}  // namespace lockstep::engine::train_arguments_test
