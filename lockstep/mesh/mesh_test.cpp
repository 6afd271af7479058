#include "lockstep/mesh/mesh.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::mesh_test {
namespace {

using ::testing::HasSubstr;

// The sum of the ranks' numbers in a group.
int sum_over(Communicator& group, int mine) {
  const at::Tensor t = at::full({1}, mine, at::kInt);
  group.all_reduce(t);
  return t.item<int>();
}

TEST(Mesh, EverySetOfAxesHasACommunicator) {
  testing::run_threads(8, [](Communicator& comm) {
    const Mesh mesh(comm, {{"data", 2}, {"stage", 2}, {"shard", 2}});
    EXPECT_EQ(mesh.layout().rank_at(mesh.coordinates()), comm.rank());
    for (const std::vector<std::string>& axes : {std::vector<std::string>{"shard"},
                                                 {"data"},
                                                 {"stage"},
                                                 {"shard", "data"},
                                                 {"stage", "shard"},
                                                 {"data", "stage", "shard"},
                                                 {}}) {
      Communicator& group = mesh.over(axes);
      const auto members = mesh.layout().group_of(comm.rank(), axes);
      ASSERT_EQ(group.size(), static_cast<int>(members.size()));
      EXPECT_EQ(members[static_cast<size_t>(group.rank())], comm.rank());
      EXPECT_EQ(sum_over(group, comm.rank()), std::accumulate(members.begin(), members.end(), 0));
    }
    EXPECT_EQ(mesh["stage"].rank(), mesh.place("stage"));
    EXPECT_EQ(sum_over(comm, 1), 8);  // the given communicator is free again
  });
}

TEST(Mesh, AxesOfOneRankCostNothing) {
  testing::run_threads(2, [](Communicator& comm) {
    const Mesh mesh(comm, {{"data", 1}, {"shard", 0}, {"tensor", 1}});
    EXPECT_EQ(mesh["data"].size(), 1);
    EXPECT_EQ(mesh["shard"].size(), 2);
    EXPECT_EQ(sum_over(mesh.over({"tensor", "data", "shard"}), 1), 2);
    EXPECT_EQ(mesh["shard"].stats().collectives, 1u);  // both names denote the same group
  });
}

TEST(Mesh, WaitsMoveEveryAxis) {
  testing::run_threads(4, [](Communicator& comm) {
    const Mesh mesh(comm, {{"data", 2}, {"shard", 2}});
    const at::Tensor a = at::full({1000}, 1.0), b = at::full({1000}, 1.0);
    Work along_data = mesh["data"].iall_reduce(a);
    Work along_shard = mesh["shard"].iall_reduce(b);
    if (comm.rank() % 2 == 0) {
      along_data.wait();
      along_shard.wait();
    } else {
      along_shard.wait();
      along_data.wait();
    }
    EXPECT_EQ(a[999].item<double>() + b[999].item<double>(), 4);
  });
}

TEST(Mesh, PrintsItself) {
  testing::run_threads(4, [](Communicator& comm) {
    EXPECT_EQ(Mesh(comm, {{"data", 2}, {"shard", 2}}).str(),
              "mesh data=2, shard=2 of 4 ranks\n"
              "  data 0: along shard ranks 0, 1\n"
              "  data 1: along shard ranks 2, 3\n");
    EXPECT_EQ(Mesh(comm, {{"all", 0}}).str(),
              "mesh all=4 of 4 ranks\n  along all ranks 0, 1, 2, 3\n");
  });
}

TEST(Mesh, NothingIsSentForAxesThatDoNotFit) {
  testing::run_threads(3, [](Communicator& comm) {
    const auto before = comm.stats().collectives;
    EXPECT_THAT(message_of<InvalidArgument>([&] { Mesh(comm, {{"data", 2}}); }),
                HasSubstr("data 2 = 2, but there are 3 ranks"));
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  Mesh(comm,
                       {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}, {"g", 3}});
                }),
                HasSubstr("at most 6"));
    EXPECT_EQ(comm.stats().collectives, before);
    const Mesh mesh(comm, {{"data", 3}});
    EXPECT_THAT(message_of<InvalidArgument>([&] { mesh["date"]; }),
                HasSubstr("did you mean data?"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::mesh_test
