#include "lockstep/core/cpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/core/fake_root_test.h"

namespace lockstep::inline v0 {
namespace {

class HostCpus : public fake_root_test::FakeRoot {
 protected:
  int count() const { return host_cpu_count(root_.path()); }

  const int online_ = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
};

TEST_F(HostCpus, AreAllWhereNoGroupHasFewer) {
  EXPECT_EQ(count(), online_);
  put("proc/self/cgroup", "0::/job\n");
  put("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/job/cpuset.cpus.effective", "\n");
  EXPECT_EQ(count(), online_);
  put("sys/fs/cgroup/job/cpuset.cpus.effective", "0-900,1000-1023\n");
  EXPECT_EQ(count(), online_);
}

TEST_F(HostCpus, AreThoseOfTheSetAndTheQuotaOfAllGroupsAbove) {
  put("proc/self/cgroup", "0::/job/rank\n");
  put("sys/fs/cgroup/job/cpuset.cpus.effective", "3,7\n");
  EXPECT_EQ(count(), std::min(online_, 2));
  put("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(count(), std::min(online_, 2)) << "one and a half";
  put("sys/fs/cgroup/job/rank/cpu.max", "20000 100000\n");
  EXPECT_EQ(count(), 1) << "a fifth";
}

TEST_F(HostCpus, OfTheFirstVersion) {
  put("proc/self/cgroup", "3:cpuset:/a\n2:cpuacct,cpu:/b\n");
  put("sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", "5\n");
  EXPECT_EQ(count(), 1);
  put("sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", "0-4095\n");
  put("sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(count(), online_);
  put("sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "90000\n");
  EXPECT_EQ(count(), 1);
}

}  // namespace
}  // namespace lockstep::inline v0
