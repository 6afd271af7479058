#include "lockstep/comm/coalesced.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/comm/internal/coalesced_plan.h"
#include "lockstep/core/errors.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::coalesced_test {
namespace {

using ::testing::ElementsAre;
using Tensors = std::vector<at::Tensor>;

// Mixed shapes and dtypes, empty, 0-dim, non-contiguous and long ones; `rows` along dim 0.
Tensors make_list(int rank, int64_t rows = 0) {
  const auto values = [rank](std::vector<int64_t> shape, at::ScalarType dtype) {
    int64_t n = 1;
    for (const int64_t dim : shape) n *= dim;
    const at::Tensor t = at::arange(n, at::kDouble).mul(0.37).add(rank * 1.3).sin().mul(100);
    return t.to(dtype).view(shape);
  };
  const bool parts = rows != 0;
  Tensors list = {
      values({parts ? rows * 2 : 3, 5}, at::kFloat),
      values({parts ? rows : 7}, at::kLong),
      values({parts ? rows : 1, 0}, at::kFloat),
      values({parts ? rows : 2, 3, 4}, at::kBFloat16),
      values({6, parts ? rows : 4}, at::kFloat).t(),
      values({parts ? rows * 30'000 : 100'000}, at::kFloat),
      values({parts ? rows * 3 : 11}, at::kInt),
      values({parts ? rows : 5, 2}, at::kFloat),
      values({parts ? rows : 9, 1}, at::kBFloat16),
  };
  if (!parts) list.push_back(values({}, at::kDouble));
  return list;
}

Tensors copies(const Tensors& list) {
  Tensors result;
  for (const at::Tensor& t : list) result.push_back(t.clone());
  return result;
}

void expect_equal(const Tensors& got, const Tensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].sizes(), expected[i].sizes()) << i;
    EXPECT_EQ(got[i].dtype(), expected[i].dtype()) << i;
    EXPECT_TRUE(got[i].equal(expected[i])) << i;
  }
}

TEST(CoalescedPlan, OneOperationADtypeAndOneALongTensor) {
  const std::vector<CoalescedItem> items = {{at::kFloat, 10}, {at::kInt, 5},   {at::kFloat, 1000},
                                            {at::kInt, 100},  {at::kFloat, 0}, {at::kLong, 101}};
  EXPECT_THAT(plan_coalesced(items, 100),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 3), ElementsAre(2), ElementsAre(5)));
  const std::vector<CoalescedItem> mixed = {
      {at::kFloat, 10}, {at::kFloat, 5, at::kCUDA}, {at::kFloat, 1}, {at::kFloat, 2, at::kCUDA}};
  EXPECT_THAT(plan_coalesced(mixed, 100), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_TRUE(plan_coalesced({}, 100).empty());
}

TEST(Coalesced, EqualsOneByOneBitForBit) {
  for (const int size : {1, 2, 3}) {
    testing::run_threads(size, [](Communicator& comm) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProduct}) {
        const Tensors list = make_list(comm.rank());
        const Tensors expected = copies(list);
        for (const at::Tensor& t : expected) comm.all_reduce(t, op);
        const uint64_t before = comm.stats().collectives;
        const Tensors blocking = copies(list);
        all_reduce_coalesced(comm, blocking, op);
        EXPECT_EQ(comm.stats().collectives - before, 6u) << "five dtypes and one long tensor";
        expect_equal(blocking, expected);
        const Tensors later = copies(list);
        Work work = iall_reduce_coalesced(comm, later, op);
        comm.barrier();
        while (!work.test()) {
        }
        work.wait();
        expect_equal(later, expected);

        const Tensors parts = make_list(comm.rank(), comm.size());
        Tensors scattered;
        for (const at::Tensor& t : parts) scattered.push_back(comm.reduce_scatter(t, op));
        expect_equal(reduce_scatter_coalesced(comm, parts, op), scattered);
      }
      const int root = comm.size() - 1;
      const Tensors list = make_list(comm.rank());
      broadcast_coalesced(comm, list, root);
      expect_equal(list, make_list(root));

      const Tensors mine = make_list(comm.rank());
      Tensors gathered;
      for (const at::Tensor& t : mine) gathered.push_back(comm.all_gather(t));
      expect_equal(all_gather_coalesced(comm, mine), gathered);
    });
  }
}

TEST(Coalesced, AveragesAndGradientsOfParameters) {
  testing::run_threads(2, [](Communicator& comm) {
    // Leaves that require grad, as the parameters of a model are.
    const Tensors list = {at::full({3}, comm.rank() + 1.0).requires_grad_(true),
                          at::full({2, 2}, comm.rank() * 4.0).requires_grad_(true)};
    all_reduce_coalesced(comm, list, ReduceOp::kAvg);
    EXPECT_EQ(list[0][2].item<double>(), 1.5);
    EXPECT_EQ(list[1][1][1].item<double>(), 2.0);
    broadcast_coalesced(comm, list, 1);
    EXPECT_EQ(list[0][0].item<double>(), 1.5);
  });
}

TEST(Coalesced, AnEmptyListIsNoOperation) {
  testing::run_threads(2, [](Communicator& comm) {
    all_reduce_coalesced(comm, {});
    iall_reduce_coalesced(comm, {}).wait();
    EXPECT_TRUE(all_gather_coalesced(comm, {}).empty());
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
}

TEST(Coalesced, MistakesAreRefusedBeforeAnythingIsSent) {
  testing::run_threads(2, [](Communicator& comm) {
    const Tensors mixed = {at::ones({2}), at::ones({2}, at::kLong)};
    EXPECT_THROW(all_reduce_coalesced(comm, mixed, ReduceOp::kAvg), InvalidArgument);
    EXPECT_THROW(all_reduce_coalesced(comm, Tensors{at::ones({2}), at::Tensor()}), InvalidArgument);
    EXPECT_THROW(reduce_scatter_coalesced(comm, Tensors{at::ones({4}), at::ones({3})}),
                 InvalidArgument);
    EXPECT_THROW(broadcast_coalesced(comm, mixed, 2), InvalidArgument);
    EXPECT_EQ(comm.stats().collectives, 0u);
    comm.barrier();
  });
}

TEST(Coalesced, ListsThatDifferAreAMismatch) {
  testing::run_threads(2, [](Communicator& comm) {
    Communicator twin = comm.duplicate();
    Tensors list = {at::ones({2}), at::ones({3})};
    // As many elements, in other shapes.
    if (comm.rank() == 1) list = {at::ones({3}), at::ones({2})};
    EXPECT_THROW(
        {
          all_reduce_coalesced(twin, list);
          twin.barrier();
        },
        Mismatch);
    if (comm.rank() == 1) list.pop_back();
    EXPECT_THROW(
        {
          all_reduce_coalesced(comm, list);
          comm.barrier();
        },
        Mismatch);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::coalesced_test
