// The same among processes, each with a generator of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/parallel/expert/expert_parallel_lm.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::expert_mp_test {
namespace {

using ::testing::HasSubstr;

LmConfig small(int64_t shared) {
  LmConfig config;
  config.vocab_size = 51;
  config.hidden_size = 32;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  config.num_local_experts = 4;
  config.router_aux_loss_coef = 0.1;
  config.shared_expert_intermediate_size = shared;
  return config;
}

TEST(ExpertParallelLmProcesses, DrawnExpertsAreOfTheModelThatOneProcessDraws) {
  for (const char* backend : {"shm", "tcp"}) {
    testing::expect_ranks(
        2,
        [](Communicator& comm) {
          for (const int64_t shared : {0, 20}) {
            const LmConfig config = small(shared);
            torch::manual_seed(5);
            TransformerLm whole(config);
            torch::manual_seed(5);
            TransformerLm lm = expert_parallel_lm(config, comm, comm);
            const auto values = whole->named_parameters();
            for (const auto& item : lm->named_parameters())
              EXPECT_TRUE(at::equal(item.value(), values[item.key()])) << item.key();
            const at::Tensor ids = torch::arange(36, at::kLong).mul(7).remainder(51).view({4, 9});
            const at::Tensor targets = ids.roll(-1, 1);
            whole->loss(ids, targets).backward();
            const int64_t row = 2 * comm.rank();
            lm->loss(ids.narrow(0, row, 2), targets.narrow(0, row, 2)).backward();
            average_gradients(split_gradients(parameters_of(lm)).others, comm);
            for (const auto& item : lm->named_parameters()) {
              const at::Tensor truth = values[item.key()].grad();
              EXPECT_LT((item.value().grad() - truth).norm().item<double>(),
                        1e-5 * truth.norm().item<double>() + 1e-9)
                  << item.key();
            }
          }
        },
        {.backend = backend}, backend);
  }
}

TEST(ExpertParallelLmProcesses, GeneratorsThatDifferAreAMismatch) {
  testing::expect_ranks(2, [](Communicator& comm) {
    torch::manual_seed(static_cast<uint64_t>(comm.rank()));
    EXPECT_THAT(message_of<Mismatch>([&] { expert_parallel_lm(small(0), comm, comm); }),
                HasSubstr("random"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::expert_mp_test
