#include "lockstep/core/aside_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::aside_file_test {
namespace {

namespace fs = std::filesystem;

class AsideFileTest : public ::testing::Test {
 protected:
  std::string read(const std::string& name) const { return dir_.read(name); }
  size_t entries() const { return dir_.names().size(); }

  TestDirectory dir_;
};

TEST_F(AsideFileTest, ReplacesWholeFilesAndLeavesNothingElse) {
  write_file_aside(dir_ / "file", "first, and longer");
  EXPECT_EQ(read("file"), "first, and longer");
  AsideFile second(dir_ / "file");
  second.write("sec");
  second.write("ond");
  EXPECT_EQ(read("file"), "first, and longer") << "not before commit()";
  second.commit();
  EXPECT_EQ(read("file"), "second");
  EXPECT_EQ(entries(), 1u);
  struct stat info{};
  ASSERT_EQ(::stat((dir_ / "file").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0600U, 0600U);
  EXPECT_EQ(info.st_mode & 0111U, 0U);
}

TEST_F(AsideFileTest, RoomThatWasAskedForIsNoContent) {
  AsideFile file(dir_ / "file");
  file.reserve(1 << 20);
  file.write("some");
  file.commit();
  EXPECT_EQ(read("file"), "some");
  AsideFile huge(dir_ / "huge");
  EXPECT_THROW(huge.reserve(size_t{1} << 60), SystemError);
}

TEST_F(AsideFileTest, WithoutCommitNothingHappens) {
  write_file_aside(dir_ / "file", "old");
  {
    AsideFile dropped(dir_ / "file");
    dropped.write("new");
  }
  EXPECT_EQ(read("file"), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AsideFileTest, TwoWritersDoNotMeet) {
  AsideFile one(dir_ / "file"), two(dir_ / "file");
  one.write("one");
  two.write("two");
  two.commit();
  one.commit();
  EXPECT_EQ(read("file"), "one");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AsideFileTest, FailureNamesThePathAndLeavesTheOldFile) {
  EXPECT_THROW(write_file_aside(dir_ / "missing/file", "text"), SystemError);
  fs::create_directory(dir_ / "taken");  // a file cannot be renamed over a directory
  try {
    write_file_aside(dir_ / "taken", "text");
    FAIL() << "no SystemError";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("taken"), std::string::npos) << error.what();
  }
  EXPECT_EQ(entries(), 1u);
}

}  // namespace
}  // namespace lockstep::aside_file_test
