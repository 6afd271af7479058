#include "lockstep/core/aside_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/pages.h"
#include "lockstep/core/parallel_blocks.h"

namespace lockstep::inline v0::aside_file_test {
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

TEST_F(AsideFileTest, AllocatedFilesHaveTheirLength) {
  AsideFile file(dir_ / "file");
  file.allocate(6);
  file.write("some");
  file.commit();
  EXPECT_EQ(read("file"), std::string("some\0\0", 6));
  AsideFile huge(dir_ / "huge");
  EXPECT_THROW(huge.allocate(size_t{1} << 60), SystemError);
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

// A writer that was killed: its file exists, and its lock does not.
TEST_F(AsideFileTest, WhatKilledWritersLeftIsRemovedAndLivingOnesAreNot) {
  const pid_t child = ::fork();
  if (child == 0) {
    AsideFile* const file = new AsideFile(dir_ / "file");
    file->write("half");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(entries(), 1u) << "nothing was left, and nothing is tested";
  dir_.write("file.77-3.partial", "of an earlier version, without a lock");
  dir_.write("file.77-x.partial", "a stranger's");
  dir_.write("other.77-0.partial", "of another file");
  AsideFile living(dir_ / "file");
  living.write("living");
  write_file_aside(dir_ / "file", "whole");
  living.commit();
  EXPECT_EQ(read("file"), "living");
  EXPECT_EQ(dir_.names(),
            (std::vector<std::string>{"file", "file.77-x.partial", "other.77-0.partial"}));
}

// Writers that come and go all the time never remove each other's files.
TEST_F(AsideFileTest, WritersOfOnePathThatLookForLeftoversLeaveEachOthers) {
  constexpr int kWriters = 4, kRounds = 50;
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (int i = 0; i < kRounds; ++i) {
        AsideFile file(dir_ / "file");
        file.write("writer " + std::to_string(w));
        EXPECT_NO_THROW(file.commit_unsynced());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(entries(), 1u);
  EXPECT_TRUE(read("file").starts_with("writer "));
}

// A writer without a free descriptor for a copy still holds its lock until the file has its name.
TEST_F(AsideFileTest, AWriterThatHasNoDescriptorLeftIsNotTakenForAKilledOne) {
  const pid_t other = ::fork();
  while (other == 0) AsideFile(dir_ / "file").write("looks for what was left");
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = usual.rlim_max};
  for (int i = 0; i < 300; ++i) {
    AsideFile file(dir_ / "file");
    file.write("whole");
    ::setrlimit(RLIMIT_NOFILE, &none);
    EXPECT_NO_THROW(file.commit_unsynced());
    ::setrlimit(RLIMIT_NOFILE, &usual);
  }
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  EXPECT_EQ(read("file"), "whole");
  write_file_aside(dir_ / "file", "of the other, too");
  EXPECT_EQ(entries(), 1u) << "nothing is left";
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

// Bytes that encode their position.
void number(std::byte* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 4096);
}
std::string text_of(const std::byte* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// Pages of a file that are in the page cache.
size_t cached_pages(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  const auto size = fs::file_size(path);
  void* const map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  std::vector<unsigned char> in((size + 4095) / 4096);
  EXPECT_EQ(::mincore(map, size, in.data()), 0);
  ::munmap(map, size);
  ::close(file);
  size_t count = 0;
  for (const unsigned char one : in) count += one & 1U;
  return count;
}

// File systems without such writes (tmpfs), and with them.
std::vector<fs::path> file_systems() {
  return {fs::temp_directory_path(), "/dev/shm"};
}

TEST_F(AsideFileTest, DirectPiecesMakeTheSameFile) {
  constexpr size_t kPage = kDirectAlignment;
  const PageMemory memory(6 * kPage);
  number(memory.data(), memory.bytes());
  for (const fs::path& where : file_systems()) {
    if (!fs::is_directory(where)) continue;
    const fs::path path = where / ("aside_file_test-" + std::to_string(::getpid()));
    for (const size_t size :
         {size_t{0}, size_t{1}, kPage - 1, kPage, kPage + 1, 3 * kPage, 5 * kPage + 17}) {
      // In one write, and as a page and the rest.
      for (const size_t first : {size, std::min(size, kPage)}) {
        AsideFile file(path);
        file.allocate(size);
        file.write_direct(0, memory.data(), first);
        file.write_direct(first, memory.data() + first, size - first);
        file.commit();
        std::ifstream in(path, std::ios::binary);
        EXPECT_EQ(std::string({std::istreambuf_iterator<char>(in), {}}),
                  text_of(memory.data(), size))
            << path << ": " << size << " bytes, the first piece of " << first;
      }
    }
    fs::remove(path);
  }
}

// Many disks refuse writes that do not begin at a page boundary.
TEST_F(AsideFileTest, WhatDoesNotFitADirectWriteIsWrittenAllTheSame) {
  const PageMemory memory(8 * kDirectAlignment);
  number(memory.data(), memory.bytes());
  AsideFile odd(dir_ / "odd");
  odd.write_direct(0, memory.data() + 3, 2 * kDirectAlignment);
  odd.commit();
  EXPECT_EQ(read("odd"), text_of(memory.data() + 3, 2 * kDirectAlignment));
  AsideFile mixed(dir_ / "mixed");
  mixed.write(memory.data(), 5);
  mixed.write_direct(5, memory.data() + 5, 2 * kDirectAlignment);
  mixed.commit();
  EXPECT_EQ(read("mixed"), text_of(memory.data(), 2 * kDirectAlignment + 5));
}

TEST_F(AsideFileTest, ThreadsWritePiecesOfOneFile) {
  constexpr size_t kPieces = 64;
  const PageMemory memory(kPieces * kDirectAlignment);
  number(memory.data(), memory.bytes());
  const size_t size = memory.bytes() - 100;
  AsideFile file(dir_ / "pieces");
  file.allocate(size);
  parallel_blocks(kPieces, 1, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t at = static_cast<size_t>(i) * kDirectAlignment;
      file.write_direct(at, memory.data() + at, std::min(kDirectAlignment, size - at));
    }
  });
  file.commit();
  EXPECT_EQ(read("pieces"), text_of(memory.data(), size));
}

TEST_F(AsideFileTest, DirectPiecesPassThePageCache) {
  const PageMemory memory(1 << 20);
  number(memory.data(), memory.bytes());
  const int probe = ::open((dir_ / "probe").c_str(), O_WRONLY | O_CREAT | O_DIRECT, 0666);
  const bool can = probe >= 0 && ::write(probe, memory.data(), kDirectAlignment) > 0;
  if (probe >= 0) ::close(probe);
  if (!can) GTEST_SKIP() << "the file system of " << dir_.path() << " lacks O_DIRECT";
  AsideFile plain(dir_ / "plain"), direct(dir_ / "direct");
  plain.write(memory.data(), memory.bytes());
  plain.commit();
  direct.write_direct(0, memory.data(), memory.bytes());
  direct.commit();
  EXPECT_EQ(cached_pages(dir_ / "plain"), 256u);
  EXPECT_EQ(cached_pages(dir_ / "direct"), 0u);
}

TEST_F(AsideFileTest, FilesAreCommittedTogether) {
  write_file_aside(dir_ / "0", "old");
  std::vector<std::unique_ptr<AsideFile>> files;
  for (int i = 0; i < 20; ++i) {
    files.push_back(std::make_unique<AsideFile>(dir_ / std::to_string(i)));
    files.back()->write("new " + std::to_string(i));
  }
  EXPECT_EQ(read("0"), "old");
  commit_together(files);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(read(std::to_string(i)), "new " + std::to_string(i));
  EXPECT_EQ(entries(), 20u);
  commit_together({});
  AsideFile unsynced(dir_ / "0");
  unsynced.write("newest");
  unsynced.commit_unsynced();
  EXPECT_EQ(read("0"), "newest");
}

// A limit on a process's file size simulates a full disk.
TEST_F(AsideFileTest, NoRoomIsOneLineAndLeavesNothing) {
  const PageMemory memory(1 << 20);
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small{.rlim_cur = 64 << 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto refusal = [&](auto&& use) {
    return message_of<SystemError>([&] {
      AsideFile file(dir_ / "large");
      use(file);
      file.commit();
    });
  };
  const std::string reserved = refusal([](AsideFile& file) { file.allocate(size_t{1} << 60); });
  const std::string direct =
      refusal([&](AsideFile& file) { file.write_direct(0, memory.data(), memory.bytes()); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  for (const std::string& message : {reserved, direct}) {
    EXPECT_NE(message.find("cannot write " + (dir_ / "large").string() + ": "), std::string::npos)
        << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  EXPECT_EQ(entries(), 0u);
}

}  // namespace
}  // namespace lockstep::inline v0::aside_file_test
