// The particulars of FileStore: foreign files, torn records, several openings of one file.
#include "lockstep/store/file_store.h"
#include "lockstep/core/internal/test_support.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace file_store_test {

using testing::AllOf;
using testing::HasSubstr;

class FileStoreTest : public testing::Test {
 protected:
  void append(const std::string& bytes) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << bytes;
  }
  std::string error_of_opening(const std::filesystem::path& path) {
    try {
      FileStore store(path);
    } catch (const StoreError& error) {
      return error.what();
    }
    return "no error";
  }

  TestDirectory folder_;
  const std::filesystem::path path_ = folder_ / "store";
};

TEST_F(FileStoreTest, TheFileIsItsOwnersAlone) {
  FileStore store(path_);
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(FileStoreTest, AForeignFileIsNamedAndLeftAsItIs) {
  append("my diary\n");
  EXPECT_THAT(error_of_opening(path_),
              AllOf(HasSubstr(path_.string()), HasSubstr("not a Lockstep store")));
  EXPECT_EQ(std::filesystem::file_size(path_), 9u);
}

TEST_F(FileStoreTest, MissingFoldersAndFoldersAreNamed) {
  EXPECT_THAT(error_of_opening(folder_ / "no/store"),
              AllOf(HasSubstr("no/store"), HasSubstr("No such file")));
  EXPECT_THAT(error_of_opening(folder_.path()), HasSubstr(folder_.path().string()));
}

TEST_F(FileStoreTest, ARecordCutShortIsCutOff) {
  {
    FileStore store(path_);
    store.set("k", "v");
  }
  const auto size = std::filesystem::file_size(path_);
  append(std::string("\x03\0\0\0\x09\0\0\0abc12", 13));
  FileStore store(path_);
  EXPECT_EQ(store.try_get("k"), "v");
  EXPECT_EQ(store.try_get("abc"), std::nullopt);
  EXPECT_EQ(std::filesystem::file_size(path_), size);
  store.set("abc", "1");
  EXPECT_EQ(FileStore(path_).try_get("abc"), "1");
}

TEST_F(FileStoreTest, CorruptRecordsAreAnError) {
  {
    FileStore store(path_);
  }
  append(std::string(16, '\xee'));
  EXPECT_THAT(error_of_opening(path_), HasSubstr("corrupt at byte 8"));
}

TEST_F(FileStoreTest, AFileThatShrankIsAnError) {
  FileStore store(path_);
  store.set("k", "v");
  std::filesystem::resize_file(path_, 8);
  EXPECT_THROW(store.try_get("k"), StoreError);
}

TEST_F(FileStoreTest, OpeningsSeeEachOthersChanges) {
  FileStore one(path_), two(path_);
  one.set("k", "1");
  EXPECT_EQ(two.try_get("k"), "1");
  two.remove("k");
  EXPECT_EQ(one.try_get("k"), std::nullopt);
  EXPECT_EQ(one.add("n", 1), 1);
  EXPECT_EQ(two.add("n", 1), 2);
}

TEST_F(FileStoreTest, OfferAndPeekDoNotWaitForAHeldLock) {
  FileStore store(path_);
  const UniqueFd other(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  const Deadline whole = Deadline::seconds(20);
  EXPECT_THROW(store.offer("k", "v", Deadline::after(std::chrono::milliseconds(10))), Timeout);
  EXPECT_THROW(store.peek("k", Deadline::after(std::chrono::milliseconds(10))), Timeout);
  EXPECT_FALSE(whole.expired());
  ::flock(other.get(), LOCK_UN);
  EXPECT_EQ(store.peek("k", whole), std::nullopt);
}

}  // namespace file_store_test
}  // namespace lockstep::inline v0
