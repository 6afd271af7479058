// Symmetric memory's pages. Two ranks are two arenas of one process.
#include "lockstep/comm/engines/shm/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

namespace lockstep::inline v0::shm {
namespace arena_test {

constexpr int64_t kMiB = 1 << 20;

// Bytes of the mapping at `memory` that huge pages of shared memory map.
int64_t huge_bytes_at(const std::byte* memory) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    uintptr_t from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(memory);
      inside = from <= at && at < to;
    }
    long kib = 0;
    if (inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %ld kB", &kib) == 1) return kib * 1024;
  }
  return -1;
}

// Whether the kernel collapses shared memory: it knows the advice from Linux 6.1 on, and may have
// been told to have no huge pages.
bool can_collapse() {
  std::ifstream enabled("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string words;
  if (!std::getline(enabled, words) || words.find("[deny]") != std::string::npos) return false;
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  constexpr int kCollapse = 25;
  const bool known = ::madvise(page, 0, kCollapse) == 0;
  ::munmap(page, 4096);
  return known;
}

class Arenas : public ::testing::Test {
 protected:
  Arenas() : memory_(Arena::make_memory(2)), mine_(dup(), 0, 2), other_(dup(), 1, 2) {}
  UniqueFd dup() const { return UniqueFd(::fcntl(memory_.get(), F_DUPFD_CLOEXEC, 0)); }
  // Of the memory file.
  int64_t bytes_in_use() const {
    struct stat file{};
    ::fstat(memory_.get(), &file);
    return file.st_blocks * 512;
  }

  UniqueFd memory_;
  Arena mine_;
  Arena other_;
};

// At least half of them: one may not be to be had.
TEST_F(Arenas, LargeMemoryHasHugePagesOnEveryRank) {
  if (!can_collapse()) GTEST_SKIP() << "this kernel cannot make huge pages of shared memory";
  std::byte* own = mine_.allocate(5 * kMiB);
  std::byte* others = other_.allocate(5 * kMiB);
  EXPECT_GE(huge_bytes_at(own), 2 * kMiB);
  EXPECT_GE(huge_bytes_at(others), 2 * kMiB);
  mine_.warm(own);
  EXPECT_GE(huge_bytes_at(mine_.peer(1, *mine_.find(own, 1))), 2 * kMiB);

  std::byte* shared = mine_.allocate_shared(8 * kMiB);
  std::byte* shared_there = other_.allocate_shared(8 * kMiB);
  mine_.warm(shared);
  other_.warm(shared_there);
  EXPECT_GE(huge_bytes_at(shared), 4 * kMiB);
  EXPECT_GE(huge_bytes_at(shared_there), 4 * kMiB);
  std::memset(shared, 7, 8 * kMiB);
  EXPECT_EQ(std::memcmp(shared, shared_there, 8 * kMiB), 0);
}

TEST_F(Arenas, SmallMemoryTakesSmallPages) {
  const int64_t before = bytes_in_use();
  std::byte* own = mine_.allocate(100);
  std::byte* others = other_.allocate(100);
  mine_.warm(own);
  other_.warm(others);
  EXPECT_LE(bytes_in_use() - before, 64 * 1024);
}

}  // namespace arena_test
}  // namespace lockstep::inline v0::shm
