#include "lockstep/core/memory_limit.h"

#include <gtest/gtest.h>

#include "lockstep/core/fake_root_test.h"

namespace lockstep::inline v0 {
namespace {

class MemoryLimits : public fake_root_test::FakeRoot {};

TEST_F(MemoryLimits, TheTightestOfAllGroupsAboveCounts) {
  put("proc/self/cgroup", "0::/job/rank\n");
  EXPECT_FALSE(memory_limit(root_.path()));
  put("sys/fs/cgroup/job/rank/memory.max", "max\n");
  EXPECT_FALSE(memory_limit(root_.path()));
  put("sys/fs/cgroup/job/memory.max", "5000\n");
  put("sys/fs/cgroup/job/memory.current", "300\n");
  auto limit = memory_limit(root_.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->bytes, 5000U);
  EXPECT_EQ(limit->used, 300U);
  EXPECT_EQ(limit->group, (root_ / "sys/fs/cgroup/job").string());
  put("sys/fs/cgroup/job/rank/memory.max", "4000\n");
  const uint64_t above = limit->id;
  limit = memory_limit(root_.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->bytes, 4000U);
  EXPECT_NE(limit->id, above);
  EXPECT_EQ(limit->used, std::nullopt);
}

TEST_F(MemoryLimits, OfTheFirstVersionAndOfAContainer) {
  put("proc/self/cgroup", "9:cpu,memory:/a/b\n3:cpuset:/\nnonsense\n");
  put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(memory_limit(root_.path()));
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "700\n");
  ASSERT_TRUE(memory_limit(root_.path()));
  EXPECT_EQ(memory_limit(root_.path())->bytes, 700U);
}

}  // namespace
}  // namespace lockstep::inline v0
