// The same among processes, each with a generator of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/shard/tensor_parallel_lm.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::tensor_mp_test {
namespace {

using ::testing::HasSubstr;

LmConfig small(bool tied) {
  LmConfig config;
  config.vocab_size = 51;
  config.hidden_size = 32;
  config.intermediate_size = 44;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  config.tie_word_embeddings = tied;
  return config;
}

at::Tensor slice_of(const at::Tensor& whole, const PartSlice& slice) {
  return slice.whole() ? whole : whole.narrow(slice.dim, slice.begin, slice.end - slice.begin);
}

TEST(TensorParallelLmProcesses, DrawnPartsAreOfTheModelThatOneProcessDraws) {
  // Four parts share two heads of keys, by groups of two.
  for (const auto& [ranks, backend] : {std::pair{2, "shm"}, {4, "shm"}, {2, "tcp"}, {4, "tcp"}}) {
    testing::expect_ranks(
        ranks,
        [](Communicator& comm) {
          for (const bool tied : {false, true}) {
            const LmConfig config = small(tied);
            torch::manual_seed(5);
            TransformerLm whole(config);
            torch::manual_seed(5);
            TransformerLm lm = tensor_parallel_lm(config, comm);
            const TensorParts parts = lm_tensor_parts(config, comm);
            const auto values = whole->named_parameters();
            for (const auto& item : lm->named_parameters())
              EXPECT_TRUE(
                  at::equal(item.value(), slice_of(values[item.key()], parts.slice(item.key()))))
                  << item.key();
            const at::Tensor ids = torch::arange(36, at::kLong).mul(7).remainder(51).view({4, 9});
            const at::Tensor targets = ids.roll(-1, 1);
            const at::Tensor expected = whole->loss(ids, targets), loss = lm->loss(ids, targets);
            EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
            expected.backward();
            loss.backward();
            for (const auto& item : lm->named_parameters()) {
              const at::Tensor truth = slice_of(values[item.key()].grad(), parts.slice(item.key()));
              EXPECT_LT((item.value().grad() - truth).norm().item<double>(),
                        1e-5 * truth.norm().item<double>())
                  << item.key();
            }
          }
        },
        {.backend = backend}, backend);
  }
}

TEST(TensorParallelLmProcesses, GeneratorsThatDifferAreAMismatch) {
  testing::expect_ranks(2, [](Communicator& comm) {
    torch::manual_seed(static_cast<uint64_t>(comm.rank()));
    EXPECT_THAT(message_of<Mismatch>([&] { tensor_parallel_lm(small(false), comm); }),
                HasSubstr("random"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::tensor_mp_test
