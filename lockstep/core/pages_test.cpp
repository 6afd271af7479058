#include "lockstep/core/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

constexpr size_t kPages = 8;

size_t resident(void* memory, size_t page) {
  std::vector<unsigned char> in(kPages);
  EXPECT_EQ(::mincore(memory, kPages * page, in.data()), 0);
  size_t count = 0;
  for (const unsigned char one : in) count += one & 1U;
  return count;
}

// Another mapping of the same file shows the state of shared memory.
TEST(Pages, WholePagesGoAndTheRestStays) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (const bool shared : {true, false}) {
    const int file = shared ? ::memfd_create("pages_test", 0) : -1;
    if (shared) {
      ASSERT_EQ(::ftruncate(file, static_cast<off_t>(kPages * page)), 0);
    }
    const int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void* const memory = ::mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, flags, file, 0);
    ASSERT_NE(memory, MAP_FAILED);
    std::memset(memory, 7, kPages * page);
    EXPECT_EQ(resident(memory, page), kPages);
    auto* const bytes = static_cast<unsigned char*>(memory);
    release_pages(bytes + page / 2, 4 * page);  // three whole ones
    if (shared) {
      void* const other = ::mmap(nullptr, kPages * page, PROT_READ, MAP_SHARED, file, 0);
      ASSERT_NE(other, MAP_FAILED);
      EXPECT_EQ(resident(other, page), kPages - 3);
      ::munmap(other, kPages * page);
    } else {
      EXPECT_EQ(resident(memory, page), kPages - 3);
    }
    EXPECT_EQ(bytes[page - 1], 7);
    EXPECT_EQ(bytes[page], 0);
    EXPECT_EQ(bytes[4 * page - 1], 0);
    EXPECT_EQ(bytes[4 * page], 7);
    bytes[2 * page] = 5;
    EXPECT_EQ(bytes[2 * page], 5);
    release_pages(bytes, page - 1);  // none
    EXPECT_EQ(bytes[0], 7);
    ::munmap(memory, kPages * page);
    if (shared) ::close(file);
  }
}

TEST(Pages, MemoryBeginsAtAPageAndIsZeros) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (const size_t bytes : {size_t{0}, size_t{1}, page, size_t{5} << 20}) {
    const PageMemory memory(bytes);
    EXPECT_EQ(memory.bytes(), bytes);
    if (bytes == 0) continue;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % page, 0u) << bytes;
    for (size_t at = 0; at < bytes; at += page) EXPECT_EQ(memory.data()[at], std::byte{0});
    std::memset(memory.data(), 7, bytes);
    EXPECT_EQ(memory.data()[bytes - 1], std::byte{7});
  }
  EXPECT_THROW(PageMemory(size_t{1} << 60), SystemError);
}

}  // namespace
}  // namespace lockstep::inline v0
