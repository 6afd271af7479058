#include "lockstep/parallel/logical/tree_sum.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::tree_sum_test {
namespace {

using ::testing::HasSubstr;

// Values whose sum depends noticeably on the order.
std::vector<at::Tensor> leaves(int count, int64_t numel) {
  std::vector<at::Tensor> result;
  for (int i = 0; i < count; ++i) {
    const at::Tensor x = at::arange(numel, at::kFloat).add_(i * 7).sin_();
    result.push_back(x * at::pow(10.0f, at::arange(numel, at::kFloat).mul_(i + 1).fmod_(7)));
  }
  return result;
}

at::Tensor tree(const std::vector<at::Tensor>& tensors, size_t begin, size_t end) {
  if (end - begin == 1) return tensors[begin];
  const size_t middle = (begin + end) / 2;
  return tree(tensors, begin, middle) + tree(tensors, middle, end);
}

TEST(TreeSum, IsTheBinaryTree) {
  for (const int count : {1, 2, 4, 8, 16}) {
    const auto tensors = leaves(count, 1000);
    TreeSum sum;
    for (const at::Tensor& leaf : tensors) sum.add(leaf.clone());
    EXPECT_EQ(sum.leaves(), count);
    EXPECT_TRUE(sum.take().equal(tree(tensors, 0, tensors.size()))) << count;
    EXPECT_EQ(sum.leaves(), 0);
  }
  // Another order gives other bits, so an arbitrary sum would fail this test.
  const auto tensors = leaves(8, 1000);
  at::Tensor in_turn = tensors[0].clone();
  for (size_t i = 1; i < tensors.size(); ++i) in_turn.add_(tensors[i]);
  EXPECT_FALSE(in_turn.equal(tree(tensors, 0, 8)));
}

TEST(TreeSum, GivesMemoryBack) {
  TreeSum sum;
  EXPECT_FALSE(sum.spare().defined());
  sum.add(at::ones({4}));
  sum.add(at::ones({4}));
  EXPECT_TRUE(sum.spare().defined());
  EXPECT_FALSE(sum.spare().defined());
  sum.add(at::ones({4}));
  EXPECT_THAT(message_of<InvalidArgument>([&] { sum.take(); }),
              HasSubstr("3 leaves are no whole tree"));
  sum.clear();
  EXPECT_EQ(sum.leaves(), 0);
  sum.add(at::ones({4}));
  EXPECT_TRUE(sum.take().equal(at::ones({4})));
}

TEST(TreeSum, RanksGoOnWithTheTree) {
  constexpr int kLeaves = 8;
  constexpr int64_t kNumel = 8 * 37;
  const auto tensors = leaves(kLeaves, kNumel);
  const at::Tensor expected = tree(tensors, 0, kLeaves);
  for (const int ranks : {1, 2, 4, 8}) {
    testing::run_threads(ranks, [&](Communicator& comm) {
      TreeSum sum;
      const int own = kLeaves / ranks;
      for (int i = 0; i < own; ++i)
        sum.add(tensors[static_cast<size_t>(comm.rank() * own + i)].clone());
      const at::Tensor mine = sum.take();
      tree_all_reduce(comm, mine);
      EXPECT_TRUE(mine.equal(expected)) << ranks;
    });
  }
}

TEST(TreeSum, RefusesWhatCannotBeShared) {
  testing::run_threads(3, [](Communicator& comm) {
    EXPECT_THROW(tree_all_reduce(comm, at::ones({6})), InvalidArgument);
  });
  testing::run_threads(2, [](Communicator& comm) {
    EXPECT_THROW(tree_all_reduce(comm, at::ones({3})), InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::tree_sum_test
