#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/internal/group_plan.h"
#include "lockstep/comm/opposite_orders_test.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/lone_ranks.h"
#include "lockstep/testing/operation_suite.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::groups_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

double sum_of(Communicator& comm, double mine) {
  const at::Tensor t = at::full({3}, mine, at::kDouble);
  comm.all_reduce(t);
  return t[2].item<double>();
}

TEST(GroupPlan, OrdersByKeyThenRankAndNumbersNodesAnew) {
  // Six ranks on three hosts; hosts 5 and 2 in the group of color 1.
  const std::vector<GroupWish> wishes = {{0, 0, 7},  {1, 9, 5}, {1, 3, 2},
                                         {-1, 0, 2}, {1, 3, 5}, {1, 1, 5}};
  const std::vector<int> members = members_of(wishes, 1);
  EXPECT_THAT(members, ElementsAre(5, 2, 4, 1));
  EXPECT_TRUE(members_of(wishes, -1).empty());
  const Topology first = topology_of_group(wishes, members, 5);
  EXPECT_EQ(first.rank, 0);
  EXPECT_EQ(first.size, 4);
  EXPECT_EQ(first.local_rank, 0);
  EXPECT_EQ(first.local_size, 3);
  EXPECT_EQ(first.node_rank, 0);
  const Topology second = topology_of_group(wishes, members, 2);
  EXPECT_EQ(second.rank, 1);
  EXPECT_EQ(second.local_size, 1);
  EXPECT_EQ(second.node_rank, 1);
  const Topology last = topology_of_group(wishes, members, 1);
  EXPECT_EQ(last.rank, 3);
  EXPECT_EQ(last.local_rank, 2);
  EXPECT_EQ(last.node_rank, 0);
}

TEST(Groups, SplitByColorAndKey) {
  testing::run_threads(5, [](Communicator& comm) {
    const int color = comm.rank() == 4 ? -3 : comm.rank() % 2;
    std::optional<Communicator> half = comm.split(color, -comm.rank());
    ASSERT_EQ(half.has_value(), comm.rank() != 4);
    if (!half) return;
    EXPECT_EQ(half->size(), 2);
    EXPECT_EQ(half->rank(), comm.rank() < 2 ? 1 : 0) << "in order of key";
    EXPECT_EQ(half->local_rank(), half->rank());
    EXPECT_EQ(half->local_size(), 2);
    EXPECT_EQ(half->timeout(), comm.timeout());
    EXPECT_EQ(sum_of(*half, comm.rank()), color == 0 ? 0 + 2 : 1 + 3);
  });
}

TEST(Groups, SubgroupInTheOrderListed) {
  testing::run_threads(4, [](Communicator& comm) {
    std::optional<Communicator> three = comm.subgroup({3, 0, 2});
    EXPECT_EQ(three.has_value(), comm.rank() != 1);
    if (three) {
      const at::Tensor all = three->all_gather(at::full({1}, comm.rank(), at::kLong));
      EXPECT_TRUE(all.equal(at::tensor({3, 0, 2}, at::kLong)));
    }
    comm.barrier();
  });
}

TEST(Groups, AGroupOfOne) {
  testing::run_threads(2, [](Communicator& comm) {
    Communicator alone = *comm.split(comm.rank());
    EXPECT_EQ(alone.size(), 1);
    EXPECT_EQ(sum_of(alone, 5), 5);
    Communicator again = alone.duplicate();
    EXPECT_EQ(sum_of(again, 6), 6);
  });
}

TEST(Groups, GroupsOfGroupsMeetOnlyTheirOwn) {
  testing::run_threads(4, [](Communicator& comm) {
    // A grid of 2 x 2, made in another order on the two halves if that is allowed.
    Communicator row = *comm.split(comm.rank() / 2);
    Communicator column = *comm.split(comm.rank() % 2);
    Communicator inner = *row.split(row.rank());
    Communicator twin = row.duplicate();
    EXPECT_EQ(sum_of(row, comm.rank()), comm.rank() < 2 ? 1 : 5);
    EXPECT_EQ(sum_of(column, comm.rank()), comm.rank() % 2 == 0 ? 2 : 4);
    EXPECT_EQ(sum_of(inner, comm.rank()), comm.rank());
    EXPECT_EQ(sum_of(twin, 1), 2);
  });
}

TEST(Groups, EveryOperationWorksInAGroup) {
  testing::run_threads(4, [](Communicator& comm) {
    std::optional<Communicator> group = comm.subgroup({2, 0, 3});
    if (!group) return;
    const testing::SuiteReport report =
        testing::run_operation_suite(*group, {.dtypes = {at::kFloat, at::kBFloat16, at::kLong}});
    for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
    EXPECT_GT(report.checked, 100);
  });
}

TEST(Groups, InterleavedCallsKeepTheirOwnNumbers) {
  testing::run_threads(3, [](Communicator& comm) {
    Communicator a = comm.duplicate();
    Communicator b = comm.duplicate();
    std::vector<Work> works;
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 20; ++i) {
      for (Communicator* one : {&b, &comm, &a}) {
        tensors.push_back(at::full({2000}, i + comm.rank(), at::kFloat));
        works.push_back(one->iall_reduce(tensors.back()));
      }
      if (i % 4 == 0) a.barrier();
    }
    // Waits in another order than started, across the groups.
    for (size_t k = 0; k < works.size(); ++k) works[k * 7 % works.size()].wait();
    for (size_t k = 0; k < tensors.size(); ++k)
      EXPECT_EQ(tensors[k][1999].item<float>(), 3.0f * static_cast<float>(k / 3) + 3) << k;
    EXPECT_EQ(a.stats().collectives, 25u);
    EXPECT_EQ(b.stats().collectives, 20u);
  });
}

TEST(Groups, AJobsCallsAreThoseOfAllItsGroups) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto sent = [](const Communicator& of) { return of.job_stats().of(Op::kAllToAll); };
    comm.all_to_all(at::zeros({2, 5}, at::kByte));
    EXPECT_EQ(sent(comm).bytes, 10u);
    {
      Communicator other = comm.duplicate();
      other.all_to_all(at::zeros({2, 50}, at::kByte));
      EXPECT_EQ(other.stats().of(Op::kAllToAll).calls, 1u);
      EXPECT_EQ(sent(other).calls, 2u);
      EXPECT_EQ(sent(comm).bytes, 110u);
    }
    comm.all_to_all(at::zeros({2, 500}, at::kByte));
    EXPECT_EQ(sent(comm).calls, 3u) << "with those of the group that is gone";
    EXPECT_EQ(sent(comm).bytes, 1110u);
    EXPECT_EQ(comm.stats().of(Op::kAllToAll).bytes, 1010u);
  });
}

TEST(Groups, MayBeWaitedInInOppositeOrders) {
  for (const int size : {1, 2, 5})
    testing::run_threads(size, wait_in_opposite_orders, {.timeout = std::chrono::seconds(20)});
  // Through small slots, in many rounds.
  testing::run_threads(3, wait_in_opposite_orders,
                       {.timeout = std::chrono::seconds(20), .slot_bytes = 4096});
}

// Threads of one rank, each with a group of its own, whose waits progress the others' groups.
TEST(Groups, ThreadsOfARankWaitAtOnce) {
  constexpr int kThreads = 3;
  testing::run_threads(
      2,
      [](Communicator& comm) {
        std::vector<Communicator> groups;
        for (int i = 0; i < kThreads; ++i) groups.push_back(comm.duplicate());
        std::vector<std::thread> threads;
        for (int i = 0; i < kThreads; ++i) {
          threads.emplace_back([&comm, group = groups[static_cast<size_t>(i)], i]() mutable {
            for (int turn = 0; turn < 50; ++turn) {
              const at::Tensor a = at::full({turn * 400 + 1}, i), b = at::full({7}, i);
              Work first = group.iall_reduce(a), second = group.iall_reduce(b);
              if (comm.rank() == 0) second.wait();
              first.wait();
              second.wait();
              EXPECT_EQ(a[turn].item<double>(), 2 * i);
              EXPECT_EQ(b[6].item<double>(), 2 * i);
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
      },
      {.timeout = std::chrono::seconds(20)});
}

// Signed, since an allocator may free meanwhile what an earlier test allocated.
int64_t memory_in_use() {
  ::malloc_trim(0);  // otherwise memory that was freed and kept would hide or show growth by chance
  return static_cast<int64_t>(memory_use().resident_bytes);
}

// Data, tensor and pipeline parallelism together: each rank in three groups.
TEST(Groups, ThreeAxesAreCheapUntilTheyAreUsed) {
  constexpr int kEdge = kSanitized ? 3 : 8;
  constexpr int kRanks = kEdge * kEdge * kEdge;
  constexpr int kGroups = 3 * kEdge * kEdge;
  int64_t before = 0, made = 0;
  const auto start = std::chrono::steady_clock::now();
  double seconds = 0;
  testing::run_threads(
      kRanks,
      [&](Communicator& comm) {
        comm.split(comm.rank() % 2);  // allocates what the parent needs for making groups
        comm.barrier();
        if (comm.rank() == 0) before = memory_in_use();
        comm.barrier();
        std::vector<Communicator> axes;
        for (int below = 1; below < kRanks; below *= kEdge) {
          // All ranks whose coordinates differ only in this axis.
          const int high = comm.rank() / (below * kEdge), low = comm.rank() % below;
          axes.push_back(*comm.split(high * below + low));
        }
        comm.barrier();
        if (comm.rank() == 0) {
          made = memory_in_use();
          seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
        comm.barrier();
        int below = 1;
        for (Communicator& axis : axes) {
          const at::Tensor sum = at::full({3}, comm.rank());
          axis.all_reduce(sum);
          const int first = comm.rank() - comm.rank() / below % kEdge * below;
          EXPECT_EQ(sum[2].item<int>(), kEdge * first + below * kEdge * (kEdge - 1) / 2);
          below *= kEdge;
        }
      },
      {.timeout = std::chrono::seconds(60)});
  std::cout << "[ measured ] " << kGroups << " groups of " << kRanks << " ranks in " << seconds
            << " s, " << (made - before) / kGroups / 1024 << " KiB each\n";
  EXPECT_LT((made - before) / kGroups, 1 << 20);
}

TEST(Groups, AnUnusedOneTakesLittleMemory) {
  constexpr int kGroups = 64, kRanks = 8;
  std::vector<std::vector<std::unique_ptr<Backend>>> groups;
  const int64_t before = memory_in_use();
  for (int i = 0; i < kGroups; ++i) groups.push_back(make_local_backends(kRanks));
  const int64_t each = (memory_in_use() - before) / kGroups;
  std::cout << "[ measured ] " << each / 1024 << " KiB a group of " << kRanks << " ranks\n";
  EXPECT_LT(each, 1 << 20);
}

TEST(Groups, ABrokenGroupLeavesTheOthersAsTheyWere) {
  testing::run_threads(3, [](Communicator& comm) {
    Communicator broken = comm.duplicate();
    Communicator whole = comm.duplicate();
    EXPECT_THAT(message_of<Mismatch>([&] {
                  broken.all_reduce(at::ones({comm.rank() == 1 ? 4 : 5}));
                  broken.barrier();
                }),
                HasSubstr("#1 all_reduce sum float32 x 4"));
    EXPECT_THAT(message_of<Mismatch>([&] { broken.barrier(); }), HasSubstr("float32 x"));
    EXPECT_EQ(sum_of(whole, 1), 3);
    EXPECT_EQ(sum_of(comm, 1), 3);
    Communicator next = comm.duplicate();
    EXPECT_EQ(sum_of(next, 2), 6);
  });
}

TEST(Groups, DroppedGroupsGiveEverythingBack) {
  testing::run_threads(2, [](Communicator& comm) {
    comm.duplicate().barrier();
    comm.barrier();
    const int64_t before = testing::holdings().rss_kib;
    for (int i = 0; i < 200; ++i) {
      Communicator group = comm.duplicate();
      group.all_reduce(at::ones({100'000}));
    }
    comm.barrier();
    // AddressSanitizer keeps freed memory for a while.
    const int64_t most = kSanitized ? 300'000 : 20'000;
    EXPECT_LT(testing::holdings().rss_kib - before, most) << "200 groups of 2 MB each";
  });
}

TEST(Groups, MistakesAreRefusedOnAllRanksAndTheParentStays) {
  testing::run_threads(2, [](Communicator& comm) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { comm.subgroup({0, 2}); }),
                HasSubstr("subgroup: 2 is not a rank of this group (0 to 1)"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { comm.subgroup({0, 0}); }), HasSubstr("twice"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { comm.subgroup({}); }), HasSubstr("empty"));
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  comm.subgroup(comm.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 0});
                }),
                HasSubstr("the same with other arguments"));
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  if (comm.rank() == 0)
                    comm.split(0);
                  else
                    comm.duplicate();
                }),
                HasSubstr("ranks ask for different groups"));
    EXPECT_EQ(sum_of(comm, 1), 2);
  });
}

// ---- shrink ----

// shrink() aborts its communicator, and with it a call that another rank has not left yet. Tests
// whose next call must succeed meet outside the communicator first.
class Meeting {
 public:
  explicit Meeting(int ranks) : missing_(ranks) {}

  // Called once per rank. Gives up after a while, since a rank that failed does not arrive.
  void wait() {
    --missing_;
    const Deadline deadline = Deadline::seconds(20);
    while (missing_ > 0 && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<int> missing_;
};

TEST(Shrink, NobodyGoneGivesEverybody) {
  Meeting meeting(3);
  testing::run_threads(3, [&](Communicator& comm) {
    Communicator all = comm.shrink(Deadline::seconds(20));
    EXPECT_EQ(all.size(), 3);
    EXPECT_EQ(all.rank(), comm.rank());
    EXPECT_EQ(sum_of(all, comm.rank()), 3);
    EXPECT_THAT(message_of<PeerLost>([&] { comm.barrier(); }), HasSubstr("shrink"));
    meeting.wait();
    Communicator again = all.shrink(Deadline::seconds(20));
    EXPECT_EQ(sum_of(again, 1), 3);
  });
}

TEST(Shrink, TheRestGoesOnInOrder) {
  testing::run_threads(4, [](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) return;  // leaves
    EXPECT_THAT(message_of<PeerLost>([&] {
                  while (true) comm.all_reduce(at::ones({4}));
                }),
                HasSubstr("rank 1"));
    const auto start = std::chrono::steady_clock::now();
    Communicator rest = comm.shrink(Deadline::seconds(60));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10))
        << "nobody waits for a rank that is known to be gone";
    EXPECT_EQ(rest.size(), 3);
    EXPECT_EQ(rest.rank(), comm.rank() == 0 ? 0 : comm.rank() - 1);
    EXPECT_EQ(rest.local_size(), 3);
    const testing::SuiteReport report =
        testing::run_operation_suite(rest, {.dtypes = {at::kFloat}, .sizes = {0, 7}});
    for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
    Communicator half = *rest.split(rest.rank() % 2);
    EXPECT_EQ(sum_of(half, 1), rest.rank() % 2 == 0 ? 2 : 1);
  });
}

// One rank saw a lost peer, one a mismatch of its own making, one nothing at all.
TEST(Shrink, WhateverErrorEachSaw) {
  Meeting meeting(4);
  testing::run_threads(4, [&](Communicator& comm) {
    comm.barrier();
    meeting.wait();
    switch (comm.rank()) {
      case 3:
        return;
      case 0:
        message_of<Error>([&] { comm.all_reduce(at::ones({3})); });
        break;
      case 1:
        message_of<Error>([&] { comm.all_gather(at::ones({5})); });
        break;
      default:
        break;  // goes straight to shrink
    }
    Communicator rest = comm.shrink(Deadline::seconds(60));
    EXPECT_EQ(sum_of(rest, 1), 3);
  });
}

TEST(Shrink, ALateRankIsLeftOutAndToldSo) {
  std::atomic<bool> done{false};
  Meeting meeting(3);
  testing::run_threads(3, [&](Communicator& comm) {
    comm.barrier();
    meeting.wait();
    if (comm.rank() == 2) {
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_THAT(message_of<PeerLost>([&] { comm.shrink(Deadline::seconds(5)); }),
                  HasSubstr("goes on as old ranks 0 1 without this one, rank 2"));
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    Communicator rest = comm.shrink(Deadline::seconds(2));
    EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(900));
    EXPECT_EQ(sum_of(rest, 1), 2);
    done = true;
  });
}

// However often an excluded rank tries again, it never makes a second group beside the first.
TEST(Shrink, NoSecondGroupBesideTheFirst) {
  std::atomic<bool> done{false};
  testing::run_threads(3, [&](Communicator& comm) {
    if (comm.rank() == 2) {
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      for (const char* expected : {"without this one", "was shrunk before", "was shrunk before"}) {
        EXPECT_THAT(message_of<PeerLost>([&] { comm.shrink(Deadline::seconds(5)); }),
                    HasSubstr(expected));
      }
      return;
    }
    Communicator rest = comm.shrink(Deadline::seconds(1));
    rest.barrier();
    EXPECT_THAT(message_of<PeerLost>([&] { comm.shrink(Deadline::seconds(5)); }),
                HasSubstr("use what that call returned"));
    EXPECT_EQ(sum_of(rest, 1), 2);
    done = true;
  });
}

TEST(Shrink, DownToOne) {
  testing::run_threads(3, [](Communicator& comm) {
    if (comm.rank() != 2) return;
    Communicator rest = comm.shrink(Deadline::seconds(60));
    EXPECT_EQ(rest.size(), 1);
    EXPECT_EQ(sum_of(rest, 4), 4);
  });
}

TEST(Groups, ACommunicatorThatKnowsOfNoOthersMovesItself) {
  auto backends = make_local_backends(2);
  Communicator one(std::move(backends[0]), Topology{0, 2, 0, 2, 0}, {});
  Communicator two(std::move(backends[1]), Topology{1, 2, 1, 2, 0}, {});
  const at::Tensor a = at::ones({4}), b = at::ones({4});
  Work first = one.iall_reduce(a);
  EXPECT_FALSE(first.test());
  one.progress();
  Work second = two.iall_reduce(b);
  const Deadline deadline = Deadline::seconds(20);
  bool first_over = false, second_over = false;
  while (!(first_over && second_over) && !deadline.expired()) {
    first_over = first.test();
    second_over = second.test();
  }
  EXPECT_EQ(a[3].item<double>() + b[3].item<double>(), 4);
}

TEST(Shrink, NeedsAWayToMakeGroups) {
  Communicator bare(std::move(make_local_backends(1).front()), Topology{}, {});
  EXPECT_THAT(message_of<InvalidArgument>([&] { bare.shrink(Deadline::seconds(1)); }),
              HasSubstr("use one from init()"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { bare.split(0); }), HasSubstr("split"));
}

}  // namespace
}  // namespace lockstep::inline v0::groups_test
