#include "lockstep/train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/core/internal/test_support.h"

namespace lockstep::run_folder_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunFolder, KeepsEveryFormerRun) {
  const TestDirectory dir;
  const auto run = [&](const std::string& what) {
    dir.write("config.json", what);
    std::filesystem::create_directory(dir / "checkpoints");
    dir.write("checkpoints/model", what);
    dir.write("data", "stays");
  };
  EXPECT_FALSE(move_former_run_aside({dir.path()}));
  run("1");
  EXPECT_THAT(move_former_run_aside({dir.path()}).value_or(""),
              AllOf(HasSubstr((dir / "previous").string()), Not(HasSubstr("previous-"))));
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"data", "previous"}));
  run("2");
  EXPECT_THAT(move_former_run_aside({dir.path()}).value_or(""),
              HasSubstr((dir / "previous-1").string()));
  run("3");
  ASSERT_TRUE(move_former_run_aside({dir.path()}));
  EXPECT_EQ(dir.read("previous/checkpoints/model"), "3");
  EXPECT_EQ(dir.read("previous-2/config.json"), "2");
  EXPECT_EQ(dir.read("previous-1/config.json"), "1");
  EXPECT_EQ(dir.names(),
            (std::vector<std::string>{"data", "previous", "previous-1", "previous-2"}));

  std::filesystem::remove_all(dir / "previous-1");  // by the user
  run("4");
  ASSERT_TRUE(move_former_run_aside({dir.path()}));
  EXPECT_EQ(dir.read("previous-3/config.json"), "3") << "the greatest number is the latest";
}

}  // namespace lockstep::run_folder_test
