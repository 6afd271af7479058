#include "lockstep/core/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::output_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refused(const fs::path& path) {
  return message_of<InvalidArgument>([&] { const OutputFolder folder(path); });
}

// During its lifetime no file may grow, as on a full disk.
class NoRoom {
 public:
  NoRoom() : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit none{0, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &none);
  }
  NoRoom(const NoRoom&) = delete;
  NoRoom& operator=(const NoRoom&) = delete;
  ~NoRoom() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_;
};

TEST(OutputFolder, GoesAgainWhereNothingWasWritten) {
  const TestDirectory dir;
  {
    const OutputFolder folder(dir / "new/deep/");
    EXPECT_TRUE(fs::is_empty(dir / "new/deep"));
  }
  EXPECT_TRUE(dir.names().empty());
}

TEST(OutputFolder, StaysWithWhatWasWritten) {
  const TestDirectory dir;
  {
    const OutputFolder folder(dir / "new/deep");
    dir.write("new/file", "x");
  }
  EXPECT_EQ(dir.read("new/file"), "x");
  EXPECT_FALSE(fs::exists(dir / "new/deep"));
}

TEST(OutputFolder, LeavesAFolderThatWasThere) {
  const TestDirectory dir;
  fs::create_directory(dir / "empty");
  OutputFolder(dir / "empty");
  EXPECT_TRUE(fs::exists(dir / "empty"));
}

TEST(OutputFolder, MovesWithItsOwner) {
  const TestDirectory dir;
  OutputFolder last;
  {
    OutputFolder first(dir / "a");
    last = std::move(first);
  }
  EXPECT_TRUE(fs::exists(dir / "a"));
  last = OutputFolder(dir / "b");
  EXPECT_EQ(dir.names(), std::vector<std::string>{"b"});
}

TEST(OutputFolder, NamesWhatIsInTheWayAndLeavesNothing) {
  const TestDirectory dir;
  dir.write("file", "x");
  EXPECT_THAT(refused(dir / "file"), AllOf(HasSubstr("file"), HasSubstr("Not a directory")));
  EXPECT_THAT(refused(dir / "file/below/it"), HasSubstr("Not a directory"));
  EXPECT_THAT(refused("/proc/lockstep/run"), HasSubstr("output /proc/lockstep/run cannot be made"));
  {
    const NoRoom no_room;
    EXPECT_THAT(refused(dir / "new/deep"), HasSubstr("cannot be written"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { check_output_file(dir / "x.json"); }),
                AllOf(HasSubstr("x.json"), HasSubstr("give another file")));
  }
  EXPECT_EQ(dir.names(), std::vector<std::string>{"file"});
}

TEST(OutputFile, MustBeAFileWhoseFolderIsThere) {
  const TestDirectory dir;
  const auto says = [](const fs::path& path) {
    return message_of<InvalidArgument>([&] { check_output_file(path); });
  };
  check_output_file("");
  check_output_file(dir / "new.json");
  check_output_file(dir.write("old.json", "kept"));
  EXPECT_EQ(dir.read("old.json"), "kept");
  EXPECT_THAT(says(dir.path()), HasSubstr("is a directory; give a file"));
  EXPECT_THAT(says(dir / "none/x.json"), HasSubstr("No such file or directory"));
  EXPECT_THAT(says("/dev/null"), HasSubstr("/dev/null is no ordinary file"));
  EXPECT_EQ(dir.names(), std::vector<std::string>{"old.json"});
}

TEST(Output, AMinusIsStdout) {
  check_output_file("-");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  write_output_file("-", "result\n");
  write_output_file("", "nothing");
  write_for_people("table\n", {"", "-"});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "result\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "table\n");
  EXPECT_FALSE(std::filesystem::exists("-"));
  const TestDirectory dir;
  ::testing::internal::CaptureStdout();
  write_output_file(dir / "r", "result\n");
  write_for_people("table\n", {"", dir / "r"});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "table\n");
  EXPECT_EQ(dir.read("r"), "result\n");
}

}  // namespace
}  // namespace lockstep::inline v0::output_test
