#include "lockstep/core/file_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0 {
namespace {

TEST(FileMemory, IsZerosAndLeavesNothing) {
  const TestDirectory dir;
  FileMemory memory(dir.path(), 100'000), empty(dir.path(), 0);
  auto* const bytes = static_cast<uint8_t*>(memory.data());
  for (const size_t at : {size_t{0}, size_t{4096}, size_t{99'999}}) EXPECT_EQ(bytes[at], 0);
  bytes[99'999] = 7;
  EXPECT_EQ(bytes[99'999], 7);
  EXPECT_EQ(memory.bytes(), 100'000U);
  EXPECT_TRUE(dir.names().empty());
}

TEST(FileMemory, SaysWhyThereIsNone) {
  const TestDirectory dir;
  EXPECT_THAT(message_of<SystemError>([&] { FileMemory(dir / "none", 10); }),
              ::testing::AllOf(::testing::HasSubstr("memory in " + (dir / "none").string()),
                               ::testing::HasSubstr("No such file")));
  EXPECT_THAT(message_of<SystemError>([&] { FileMemory(dir.path(), size_t{1} << 60); }),
              ::testing::HasSubstr("memory in " + dir.path().string()));
  EXPECT_TRUE(dir.names().empty());
}

}  // namespace
}  // namespace lockstep::inline v0
