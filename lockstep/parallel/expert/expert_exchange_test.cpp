#include "lockstep/parallel/expert/expert_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::expert_exchange_test {
namespace {

using ::testing::HasSubstr;
using Numbers = std::vector<int64_t>;

TEST(ExpertRoutes, RowsComeByExpertAndThenByRank) {
  // Two ranks, four experts: rank 0 has rows 1 2 3 0 for them, rank 1 has 2 0 1 1.
  const Numbers all{1, 2, 3, 0, 2, 0, 1, 1};
  const ExpertRoutes first = expert_routes(all, 4, 0, 2);
  EXPECT_EQ(first.sends, (Numbers{3, 3}));
  EXPECT_EQ(first.receives, (Numbers{3, 2}));
  EXPECT_EQ(first.counts, (Numbers{3, 2}));
  // Received: 0 of expert 0, 1 2 of expert 1, from rank 1 3 4 of expert 0.
  EXPECT_EQ(first.sorted, (Numbers{0, 3, 4, 1, 2}));
  EXPECT_EQ(first.received, (Numbers{0, 3, 4, 1, 2}));
  const ExpertRoutes second = expert_routes(all, 4, 1, 2);
  EXPECT_EQ(second.sends, (Numbers{2, 2}));
  EXPECT_EQ(second.receives, (Numbers{3, 2}));
  EXPECT_EQ(second.counts, (Numbers{4, 1}));
  EXPECT_EQ(second.sorted, (Numbers{0, 1, 2, 3, 4}));
}

TEST(ExpertRoutes, TheWayBackUndoesTheWayThere) {
  for (int64_t ranks : {1, 2, 3}) {
    const int64_t experts = 2 * ranks;
    Numbers all;
    for (int64_t i = 0; i < ranks * experts; ++i) all.push_back((i * 7 + 3) % 5);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const ExpertRoutes routes = expert_routes(all, experts, rank, ranks);
      for (size_t i = 0; i < routes.sorted.size(); ++i)
        EXPECT_EQ(routes.received[static_cast<size_t>(routes.sorted[i])], static_cast<int64_t>(i));
    }
  }
}

// Rows that say whose they are and for which expert.
TEST(ExpertExchange, RowsGoToTheirExpertsAndComeBack) {
  testing::run_threads(2, [](Communicator& comm) {
    const LmExperts experts = experts_over(comm, comm);
    EXPECT_EQ(experts.part, comm.rank());
    EXPECT_EQ(experts.token_ranks(), 2);
    const Numbers counts = comm.rank() == 0 ? Numbers{1, 2, 3, 0} : Numbers{2, 0, 1, 1};
    std::vector<double> numbers;
    for (int64_t e = 0; e < 4; ++e)
      for (int64_t i = 0; i < counts[static_cast<size_t>(e)]; ++i)
        numbers.push_back(static_cast<double>(100 * e + 10 * comm.rank() + i));
    const at::Tensor rows = torch::tensor(numbers, at::kDouble).unsqueeze(1).requires_grad_();
    const LmExpertRows here = experts.ranks->exchange(rows, counts, 0);
    EXPECT_EQ(here.counts, comm.rank() == 0 ? (Numbers{3, 2}) : (Numbers{4, 1}));
    const at::Tensor expected = comm.rank() == 0
                                    ? torch::tensor({0., 10., 11., 100., 101.}, at::kDouble)
                                    : torch::tensor({200., 201., 202., 210., 310.}, at::kDouble);
    EXPECT_TRUE(at::equal(here.rows.detach().squeeze(1), expected));
    const at::Tensor inside = here.rows * 2;
    inside.retain_grad();
    const at::Tensor back = here.back(inside);
    EXPECT_TRUE(at::equal(back.detach(), rows.detach() * 2));
    back.backward(torch::ones_like(back) * 3);
    // Experts see a mean over the ranks, tokens their own gradient.
    EXPECT_TRUE(at::equal(inside.grad(), torch::full_like(inside, 1.5)));
    EXPECT_TRUE(at::equal(rows.grad(), torch::full_like(rows, 6)));
  });
}

TEST(ExpertExchange, ARankAtAnotherLayerIsAMismatch) {
  const std::string text = message_of<Mismatch>([] {
    testing::run_threads(2, [](Communicator& comm) {
      const LmExperts experts = experts_over(comm, comm);
      experts.ranks->exchange(torch::zeros({2, 3}), {1, 1}, comm.rank());
    });
  });
  EXPECT_THAT(text, HasSubstr("expert: counts of layer"));
}

// A rank that leaves a layer out of its backward, where the other is in it.
TEST(ExpertExchange, ARankThatSkipsABackwardIsAMismatch) {
  const std::string text = message_of<Mismatch>([] {
    testing::run_threads(2, [](Communicator& comm) {
      const LmExperts experts = experts_over(comm, comm);
      std::vector<at::Tensor> rows, backs;
      for (int64_t layer = 0; layer < 2; ++layer) {
        rows.push_back(torch::ones({2, 3}).requires_grad_());
        const LmExpertRows here = experts.ranks->exchange(rows.back(), {1, 1}, layer);
        backs.push_back(here.back(here.rows));
      }
      if (comm.rank() == 0) backs[1].sum().backward();
      backs[0].sum().backward();
    });
  });
  EXPECT_THAT(text, HasSubstr("expert: layer"));
}

}  // namespace
}  // namespace lockstep::inline v0::expert_exchange_test
