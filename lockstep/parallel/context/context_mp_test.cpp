// The same among processes, over shared memory and TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/parallel/context/context_parallel_lm.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::context_mp_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LmConfig small() {
  LmConfig config;
  config.vocab_size = 51;
  config.hidden_size = 36;
  config.intermediate_size = 44;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 512;
  config.initializer_range = 0.2;
  config.hidden_dropout = 0.1;
  return config;
}

TEST(ContextParallelLmProcesses, AreOneProcess) {
  const at::Tensor lengths = torch::tensor({401, 7, 1, 96}, at::kLong);
  const at::Tensor ids = torch::arange(505, at::kLong).mul(7).remainder(51);
  const at::Tensor targets = ids.roll(-1, 0);
  for (const char* backend : {"shm", "tcp"}) {
    for (const ContextWay way : {ContextWay::kRing, ContextWay::kHeads}) {
      testing::expect_ranks(
          3,
          [&](Communicator& comm) {
            // Generators that differ: models and masks are rank 0's.
            torch::manual_seed(static_cast<uint64_t>(5 + comm.rank()));
            TransformerLm lm = context_parallel_lm(small(), comm, {.way = way});
            torch::manual_seed(5);
            TransformerLm whole(small());
            const auto values = whole->named_parameters();
            for (const auto& item : lm->named_parameters())
              EXPECT_TRUE(at::equal(item.value(), values[item.key()])) << item.key();
            const at::Tensor expected = whole->loss(ids, targets, lengths);
            torch::manual_seed(static_cast<uint64_t>(5 + comm.rank()));
            TransformerLm again(small());  // the generator's state after it
            const at::Tensor loss = lm->loss(ids, targets, lengths);
            EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
            expected.backward();
            loss.backward();
            average_gradients(lm, comm);
            for (const auto& item : lm->named_parameters()) {
              const at::Tensor truth = values[item.key()].grad();
              EXPECT_LT((item.value().grad() - truth).norm().item<double>(),
                        1e-5 * truth.norm().item<double>())
                  << item.key();
            }
          },
          {.backend = backend}, std::string(backend) + ", " + to_string(way));
    }
  }
}

TEST(ContextParallelLmProcesses, RanksWhoseLengthsDifferAreTold) {
  testing::expect_ranks(2, [](Communicator& comm) {
    TransformerLm lm = context_parallel_lm(small(), comm);
    const at::Tensor ids = torch::arange(12, at::kLong);
    const at::Tensor lengths = torch::tensor({4 + comm.rank(), 8 - comm.rank()}, at::kLong);
    EXPECT_THAT(message_of<Mismatch>([&] { lm->loss(ids, ids, lengths); }),
                AllOf(HasSubstr("context: lengths"), HasSubstr("rank 0"), HasSubstr("rank 1")));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::context_mp_test
