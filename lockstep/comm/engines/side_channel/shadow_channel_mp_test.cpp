// The side channel for several hosts, tested on one: its behaviour does not depend on the ranks'
// hosts.
#include "lockstep/comm/engines/side_channel/shadow_channel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "lockstep/comm/engines/gloo/gloo_backend.h"
#include "lockstep/comm/engines/side_channel/checked_backend.h"
#include "lockstep/core/env.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/testing/fault_suite.h"
#include "lockstep/testing/gtest_ranks.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::shadow_channel_mp_test {
namespace {

// A communicator over gloo, checked over a second gloo. The ranks of a test share a file.
Communicator make_shadow_comm(std::chrono::nanoseconds timeout) {
  const EnvLookup env = process_env();
  const int rank = static_cast<int>(*env_int(env, "RANK"));
  const int size = static_cast<int>(*env_int(env, "WORLD_SIZE"));
  const auto store = std::make_shared<FileStore>(
      std::filesystem::temp_directory_path() / ("lockstep-shadow-" + std::to_string(::getppid())));
  const GlooOptions options = {
      .rank = rank, .size = size, .timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout)};
  auto channel = side_channel::make_shadow_channel(
      make_gloo_backend(std::make_shared<PrefixStore>("shadow", store), options),
      std::make_shared<PrefixStore>("check", store), rank, size);
  auto backend =
      make_checked_backend(make_gloo_backend(std::make_shared<PrefixStore>("main", store), options),
                           std::move(channel), rank);
  return Communicator(std::move(backend), {rank, size, rank, size, 0}, {.timeout = timeout});
}

void remove_file() {
  std::filesystem::remove(std::filesystem::temp_directory_path() /
                          ("lockstep-shadow-" + std::to_string(::getpid())));
}

TEST(ShadowChannel, OperationsAgreeWithTheOracle) {
  testing::expect_ranks(3, [](Communicator&) {
    Communicator comm = make_shadow_comm(std::chrono::seconds(30));
    const testing::SuiteReport report = testing::run_operation_suite(
        comm, {.dtypes = {at::kFloat, at::kBFloat16}, .every_root = false});
    for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
    EXPECT_GT(report.checked, 100);
  });
  remove_file();
}

class ShadowFaults : public ::testing::TestWithParam<testing::Fault> {};

TEST_P(ShadowFaults, EverySurvivorGetsTheRightErrorInTime) {
  const testing::Fault& fault = GetParam();
  std::map<int, int> ends;
  if (fault.end != 0) ends[testing::kFaultyRank] = fault.end;
  testing::expect_lone_ranks(
      testing::kFaultSize,
      [&fault] {
        Communicator comm = make_shadow_comm(testing::fault_timeout(fault));
        // gloo reports that a connection was closed, not which rank's.
        EXPECT_EQ(testing::run_fault(comm, fault, {.names_lost = false}), "");
      },
      ends);
  remove_file();
}

INSTANTIATE_TEST_SUITE_P(All, ShadowFaults, ::testing::ValuesIn(testing::faults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::inline v0::shadow_channel_mp_test
