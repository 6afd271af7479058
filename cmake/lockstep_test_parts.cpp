// Of every test program: which part of the cases it runs (SHARDS in LockstepRoom.cmake) is its own. The processes that a case
// starts run one case of the same program, and would find it in another part.
#include <gtest/gtest.h>

#include <cstdlib>

namespace {

class TestParts final : public ::testing::Environment {
 public:
  // The cases have been chosen by now.
  void SetUp() override {
    ::unsetenv("GTEST_TOTAL_SHARDS");
    ::unsetenv("GTEST_SHARD_INDEX");
  }
};

[[maybe_unused]] const ::testing::Environment* const kParts =
    ::testing::AddGlobalTestEnvironment(new TestParts);  // GoogleTest's from here on

}  // namespace
