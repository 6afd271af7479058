#include "lockstep/data/internal/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/data/internal/test_dir.h"

namespace lockstep::data {
namespace atomic_file_test {

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(AtomicFile, ReplacesWholeFilesAndLeavesNothingElse) {
  const TestDir dir;
  const std::string first = "first, and longer", head = "sec", tail = "ond";
  write_file_atomically(dir / "file", {bytes(first)});
  EXPECT_EQ(dir.read("file"), first);
  write_file_atomically(dir / "file", {bytes(head), bytes(tail)});
  EXPECT_EQ(dir.read("file"), "second");
  EXPECT_EQ(dir.entries(), 1U);
  struct stat info{};
  ASSERT_EQ(::stat((dir / "file").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0600U, 0600U);
  EXPECT_EQ(info.st_mode & 0111U, 0U);
}

TEST(AtomicFile, FailureNamesThePathAndLeavesTheOldFile) {
  const TestDir dir;
  const std::string text = "text";
  EXPECT_THROW(write_file_atomically(dir / "missing/file", {bytes(text)}), SystemError);
  std::filesystem::create_directory(dir / "taken");  // a file cannot be renamed over a directory
  const auto line =
      message_of<SystemError>([&] { write_file_atomically(dir / "taken", {bytes(text)}); });
  EXPECT_NE(line.find("taken"), std::string::npos) << line;
  EXPECT_EQ(dir.entries(), 1U);
}

}  // namespace atomic_file_test
}  // namespace lockstep::data
