#include "lockstep/shard/tensor_parallel_lm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <map>
#include <numeric>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/amp/autocast.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/model/lm_values_test.h"
#include "lockstep/parallel/tensor/tensor_part.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/shard/parallelize.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::tensor_parallel_lm_test {
namespace {

using testing::difference;
using testing::gradients_of;
using ::testing::HasSubstr;
using testing::made;
using testing::values_of;

struct Kind {
  int64_t key_value_heads = 4;
  bool tied = false;
  bool divides_rows = false;
};
const std::vector<Kind> kKinds{{4, false},      {4, true}, {2, false},       {2, true},
                               {4, true, true}, {1, true}, {2, false, true}, {1, false, true}};

LmConfig small(const Kind& kind) {
  LmConfig config;
  config.vocab_size = 50;  // 4 parts have 12 or 13 words
  config.hidden_size = 32;
  config.intermediate_size = 44;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = kind.key_value_heads;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  config.tie_word_embeddings = kind.tied;
  config.attention_bias = config.mlp_bias = kind.tied;
  return config;
}

TransformerLm part_of(const TransformerLm& whole, const Communicator& comm, const Kind& kind) {
  return tensor_parallel_lm(whole, comm, {.divides_rows = kind.divides_rows});
}

// Of four sequences; some words have no target.
struct Batch {
  at::Tensor ids, targets;
};
Batch batch_of(int64_t step, int64_t sequences = 4) {
  const int64_t count = sequences * 9;
  const at::Tensor ids =
      (torch::arange(count, at::kLong) * 17 + step * 11).pow(2).remainder(50).view({sequences, 9});
  const at::Tensor targets = ids.roll(-1, 1);
  return {ids, targets};
}

at::Tensor slice_of(const at::Tensor& whole, const PartSlice& slice) {
  return slice.whole() ? whole : whole.narrow(slice.dim, slice.begin, slice.end - slice.begin);
}

void expect_slices(const std::map<std::string, at::Tensor>& mine,
                   const std::map<std::string, at::Tensor>& whole, const TensorParts& parts,
                   double tolerance) {
  ASSERT_EQ(mine.size(), whole.size());
  for (const auto& [name, value] : mine)
    EXPECT_LT(difference(value, slice_of(whole.at(name), parts.slice(name))), tolerance) << name;
}

TEST(TensorParallelLm, LossLogitsAndGradientsAreTheWholes) {
  for (const Kind& kind : kKinds) {
    TransformerLm whole = made(small(kind));
    const auto [ids, targets] = batch_of(0);
    targets[1].narrow(0, 0, 3).fill_(-100);
    const at::Tensor logits = whole(ids).detach();
    const at::Tensor loss = whole->loss(ids, targets);
    loss.backward();
    const auto gradients = gradients_of(whole);
    for (const int size : {1, 2, 4}) {
      testing::run_threads(size, [&](Communicator& comm) {
        TransformerLm lm = part_of(whole, comm, kind);
        const TensorParts parts = lm_tensor_parts(lm->config(), comm);
        const at::Tensor found = lm(ids);
        EXPECT_LT(difference(found, logits), 1e-10);
        const at::Tensor mine = lm->loss(ids, targets);
        EXPECT_LT(difference(mine, loss), 1e-10);
        mine.backward();
        expect_slices(gradients_of(lm), gradients, parts, 1e-10);
        // By all logits, gathered.
        lm->zero_grad();
        next_token_loss(found, targets).backward();
        expect_slices(gradients_of(lm), gradients, parts, 1e-10);
      });
    }
  }
}

template <typename Optimizer, typename Options>
void train(TransformerLm& lm, const Options& options, int64_t steps,
           const std::function<void()>& synchronize = {}, int64_t row = 0, int64_t rows = 4) {
  Optimizer optimizer(lm->parameters(), options);
  for (int64_t step = 0; step < steps; ++step) {
    const auto [ids, targets] = batch_of(step);
    optimizer.zero_grad();
    lm->forward(ids.narrow(0, row, rows), {}, targets.narrow(0, row, rows)).backward();
    if (synchronize) synchronize();
    optimizer.step();
  }
}

// In float32, by the nodes; what every part has whole stays alike on all of them.
TEST(TensorParallelLm, EqualBitsEveryTimeAndOnAllParts) {
  for (const Kind& kind : {Kind{4, false}, Kind{4, false, true}, Kind{2, true}}) {
    TransformerLm start = made(small(kind), at::kFloat);
    const torch::optim::SGDOptions sgd(0.05);
    for (const int size : {2, 4}) {
      std::vector<std::vector<std::map<std::string, at::Tensor>>> runs(
          2, std::vector<std::map<std::string, at::Tensor>>(static_cast<size_t>(size)));
      for (auto& run : runs) {
        testing::run_threads(size, [&](Communicator& comm) {
          TransformerLm lm = part_of(start, comm, kind);
          train<torch::optim::SGD>(lm, sgd, 3);
          run[static_cast<size_t>(comm.rank())] = values_of(lm);
          const TensorParts parts = lm_tensor_parts(lm->config(), comm);
          const auto [ids, targets] = batch_of(7);
          const at::Tensor loss = lm->loss(ids, targets).detach().view({1});
          EXPECT_TRUE(at::equal(comm.all_gather(loss), loss.expand({size})));
          for (const auto& item : lm->named_parameters()) {
            const bool is_shared =
                item.key().find("k_proj") != std::string::npos && size > kind.key_value_heads;
            if (!parts.slice(item.key()).whole() && !is_shared) continue;
            for (const at::Tensor& value : {item.value().detach(), item.value().grad()}) {
              at::Tensor all = comm.all_gather(value.unsqueeze(0));
              if (is_shared) all = all.narrow(0, comm.rank() / 2 * 2, 2);
              EXPECT_TRUE(at::equal(all, value.unsqueeze(0).expand_as(all))) << item.key();
            }
          }
        });
      }
      for (size_t rank = 0; rank < static_cast<size_t>(size); ++rank)
        for (const auto& [name, value] : runs[0][rank])
          EXPECT_TRUE(at::equal(value, runs[1][rank].at(name))) << name;
    }
  }
}

// Products of bfloat16: sums over the parts are rounded to it as well.
TEST(TensorParallelLm, InBFloat16ItIsNearTheWhole) {
  TransformerLm whole = made(small({4, false}), at::kFloat);
  const auto [ids, targets] = batch_of(0);
  const at::Tensor loss = whole->loss(ids, targets);
  loss.backward();
  const auto gradients = gradients_of(whole);
  testing::run_threads(2, [&, ids = ids, targets = targets](Communicator& comm) {
    TransformerLm lm = tensor_parallel_lm(whole, comm);
    const TensorParts parts = lm_tensor_parts(lm->config(), comm);
    at::Tensor mine;
    {
      const amp::Autocast autocast(amp::AutocastSettings{});
      mine = lm->loss(ids, targets);
    }
    mine.backward();
    EXPECT_LT(difference(mine, loss), 0.02);
    for (const auto& [name, found] : gradients_of(lm)) {
      const at::Tensor expected = slice_of(gradients.at(name), parts.slice(name));
      const double away = ((found - expected).norm() / expected.norm()).item<double>();
      EXPECT_LT(away, 0.1) << name;
      EXPECT_GT(away, 1e-5) << name;  // it is not float32
    }
  });
}

// Masks are one process's in every bit, so the numbers are, but for the order of sums.
TEST(TensorParallelLm, DropoutIsTheWholes) {
  LmConfig config = small({4, true});
  config.attention_dropout = 0.3;
  config.hidden_dropout = 0.2;
  TransformerLm whole = made(config);
  const auto [ids, targets] = batch_of(0);
  const auto loss_of = [ids = ids, targets = targets](TransformerLm& lm) {
    const LmPass pass = lm->pass({9, 9, 9, 9}, {.dropout_seed = 77});
    at::Tensor x = ids.reshape({36});
    for (size_t i = 0; i + 1 < lm->units().size(); ++i) x = lm->units()[i]->forward(x, pass);
    return head_loss(*lm->units().back(), x, targets.reshape({36}), pass);
  };
  const at::Tensor loss = loss_of(whole);
  loss.backward();
  const auto gradients = gradients_of(whole);
  whole->eval();
  const auto undropped = whole->loss(ids, targets).item<double>();
  whole->train();
  EXPECT_GT(std::abs(undropped - loss.item<double>()), 1e-3);
  for (const auto& [size, divides_rows] : {std::pair{2, false}, {4, false}, {2, true}, {4, true}}) {
    testing::run_threads(size, [&, size = size, divides_rows = divides_rows](Communicator& comm) {
      TransformerLm lm = part_of(whole, comm, {4, true, divides_rows});
      const TensorParts parts = lm_tensor_parts(config, comm);
      const at::Tensor mine = loss_of(lm);
      EXPECT_LT(difference(mine, loss), 1e-10);
      mine.backward();
      expect_slices(gradients_of(lm), gradients, parts, 1e-10);
      // Without a seed the parts agree on one.
      const at::Tensor drawn = lm->loss(ids, targets).detach().view({1});
      EXPECT_TRUE(at::equal(comm.all_gather(drawn), drawn.expand({size})));
      EXPECT_GT(std::abs(drawn.item<double>() - undropped), 1e-6);
      EXPECT_EQ(comm.stats().of(Op::kBroadcast).bytes, 8u);
    });
  }
}

// Ranks that are threads share a generator: parts that draw by themselves are tested among processes.
TEST(TensorParallelLm, PartsAreFilledWithoutAWhole) {
  for (const bool tied : {false, true}) {
    const LmConfig config = small({4, tied});
    torch::manual_seed(5);
    const TransformerLm whole(config);
    const auto expected = values_of(whole);
    torch::manual_seed(5);
    const TransformerLm empty(config, LmOptions{.initial = InitialParameters::kNone});
    const ParameterParts drawn = empty->drawn_parts();
    for (const int size : {1, 2, 4}) {
      testing::run_threads(size, [&](Communicator& comm) {
        TransformerLm lm = tensor_parallel_lm(config, comm, drawn);
        const TensorParts parts = lm_tensor_parts(config, comm);
        for (const auto& [name, value] : values_of(lm))
          EXPECT_TRUE(at::equal(value, slice_of(expected.at(name), parts.slice(name)))) << name;
      });
    }
  }
}

TEST(TensorParallelLm, PartsPutTogetherAreAWholeModel) {
  TransformerLm start = made(small({2, true}), at::kFloat);
  const auto [ids, targets] = batch_of(3);
  for (const int size : {2, 4})
    testing::run_threads(size, [&, ids = ids](Communicator& comm) {
      TransformerLm lm = tensor_parallel_lm(start, comm);
      TensorParts parts = lm_tensor_parts(lm->config(), comm);
      const NamedTensors state = parts.gather(parameters_of(lm));
      if (comm.rank() != 0) return;
      TransformerLm again(lm->config(), LmOptions{.initial = InitialParameters::kNone});
      const at::NoGradGuard no_grad;
      auto parameters = again->named_parameters();
      ASSERT_EQ(state.size(), parameters.size());
      for (const auto& [name, value] : state) parameters[name].copy_(value);
      EXPECT_TRUE(at::equal(again(ids), start(ids)));
    });
}

// Rows are summed twice a layer each way, once for the embeddings and once before the head; three numbers a token
// for the loss.
TEST(TensorParallelLm, WhatIsSentIsWhatTheorySays) {
  TransformerLm whole = made(small({4, false}));
  const LmConfig& config = whole->config();
  const auto [ids, targets] = batch_of(0);
  testing::run_threads(4, [&, ids = ids, targets = targets](Communicator& comm) {
    TransformerLm lm = tensor_parallel_lm(whole, comm);
    const uint64_t at_birth = comm.stats().collectives;
    const auto before = comm.stats().of(Op::kAllReduce);
    const at::Tensor loss = lm->loss(ids, targets);
    const auto between = comm.stats().of(Op::kAllReduce);
    loss.backward();
    const auto after = comm.stats().of(Op::kAllReduce);
    const auto layers = static_cast<uint64_t>(config.num_hidden_layers);
    const uint64_t tokens = 36, rows = tokens * 32 * sizeof(double);
    EXPECT_EQ(between.calls - before.calls, 1 + 2 * layers + 2);
    EXPECT_EQ(between.bytes - before.bytes, (1 + 2 * layers) * rows + 3 * tokens * sizeof(double));
    EXPECT_EQ(after.calls - between.calls, 2 * layers + 1);
    EXPECT_EQ(after.bytes - between.bytes, (2 * layers + 1) * rows);
    EXPECT_EQ(comm.stats().collectives - at_birth, after.calls - before.calls);
  });
}

// A head that two parts share: its two matrices' gradients besides, in a group of the two, and no row.
TEST(TensorParallelLm, WhatPartsShareSendsItsGradientAlone) {
  for (const int64_t key_heads : {1, 2}) {
    TransformerLm whole = made(small({key_heads, false}));
    const auto [ids, targets] = batch_of(0);
    testing::run_threads(4, [&, ids = ids, targets = targets](Communicator& comm) {
      TransformerLm lm = tensor_parallel_lm(whole, comm);
      const at::Tensor loss = lm->loss(ids, targets);
      const auto before = comm.stats().of(Op::kAllReduce);
      loss.backward();
      const auto after = comm.stats().of(Op::kAllReduce);
      constexpr uint64_t kLayers = 3, kRows = 36 * 32 * sizeof(double);
      // Of a single head all parts are the group.
      const uint64_t shared = key_heads == 1 ? kLayers * 2 * 8 * 32 * sizeof(double) : 0;
      EXPECT_EQ(after.bytes - before.bytes, (2 * kLayers + 1) * kRows + shared);
    });
  }
}

TEST(TensorParallelLm, TheNormCountsASharedHeadOnce) {
  for (const int64_t key_heads : {1, 2}) {
    TransformerLm whole = made(small({key_heads, true}));
    const auto [ids, targets] = batch_of(0);
    whole->loss(ids, targets).backward();
    double squares = 0;
    for (const at::Tensor& parameter : whole->parameters())
      squares += parameter.grad().pow(2).sum().item<double>();
    testing::run_threads(4, [&, ids = ids, targets = targets](Communicator& comm) {
      TransformerLm lm = tensor_parallel_lm(whole, comm);
      lm->loss(ids, targets).backward();
      EXPECT_NEAR(lm_tensor_parts(lm->config(), comm).gradient_norm(parameters_of(lm)),
                  std::sqrt(squares), 1e-10 * std::sqrt(squares));
    });
  }
}

// The same rows, gathered and reduce-scattered; and the gradients of norms and last biases.
TEST(TensorParallelLm, DividedRowsSendWhatTheorySays) {
  TransformerLm whole = made(small({4, true}));
  const auto [ids, targets] = batch_of(0);
  testing::run_threads(4, [&, ids = ids, targets = targets](Communicator& comm) {
    TransformerLm lm = part_of(whole, comm, {4, true, true});
    const auto stats = [&comm](Op op) { return comm.stats().of(op); };
    const auto gathered = stats(Op::kAllGather), scattered = stats(Op::kReduceScatter),
               reduced = stats(Op::kAllReduce);
    const at::Tensor loss = lm->loss(ids, targets);
    constexpr uint64_t kLayers = 3, kTokens = 36, kWidth = 32,
                       kRows = kTokens * kWidth * sizeof(double);
    EXPECT_EQ(stats(Op::kAllGather).bytes - gathered.bytes, (2 * kLayers + 1) * kRows);
    EXPECT_EQ(stats(Op::kReduceScatter).bytes - scattered.bytes, (2 * kLayers + 1) * kRows);
    loss.backward();
    EXPECT_EQ(stats(Op::kAllGather).bytes - gathered.bytes, 2 * (2 * kLayers + 1) * kRows);
    EXPECT_EQ(stats(Op::kReduceScatter).bytes - scattered.bytes, 2 * (2 * kLayers + 1) * kRows);
    // Two norms and two biases a layer, and the last norm.
    EXPECT_EQ(stats(Op::kAllReduce).bytes - reduced.bytes,
              3 * kTokens * sizeof(double) + (4 * kLayers + 1) * kWidth * sizeof(double));
  });
}

// Layers that are computed again in backward meet the other parts' again.
TEST(TensorParallelLm, LayersMayBeComputedAgain) {
  TransformerLm whole = made(small({2, false}));
  const auto [ids, targets] = batch_of(0);
  const at::Tensor loss = whole->loss(ids, targets);
  loss.backward();
  const auto gradients = gradients_of(whole);
  for (const bool divides_rows : {false, true}) {
    testing::run_threads(4, [&, ids = ids, targets = targets](Communicator& comm) {
      TransformerLm lm = part_of(whole, comm, {2, false, divides_rows});
      checkpoint_layers<LmUnit::Signature>(*lm, {.names = {"model.layers.*"}, .every = 2});
      const at::Tensor mine = lm->loss(ids, targets);
      EXPECT_LT(difference(mine, loss), 1e-10);
      const Op op = divides_rows ? Op::kReduceScatter : Op::kAllReduce;
      const uint64_t before = comm.stats().of(op).calls;
      mine.backward();
      EXPECT_GT(comm.stats().of(op).calls - before, 2u * 3 + 1);
      expect_slices(gradients_of(lm), gradients, lm_tensor_parts(lm->config(), comm), 1e-10);
    });
  }
}

TEST(TensorParallelLm, ARankThatDiffersIsAMismatch) {
  TransformerLm whole = made(small({4, false}));
  const auto says = [](const std::function<void(Communicator&)>& fn) {
    return message_of<Mismatch>([&] { testing::run_threads(2, fn); });
  };
  EXPECT_THAT(says([&](Communicator& comm) {
                const auto [ids, targets] = batch_of(0, 4 + comm.rank());
                tensor_parallel_lm(whole, comm)->loss(ids, targets);
              }),
              HasSubstr("reduce_from_parts"));
  EXPECT_THAT(says([&](Communicator& comm) {
                LmConfig config = small({4, false});
                config.num_hidden_layers += comm.rank();
                tensor_parallel_lm(config, comm);
              }),
              HasSubstr("tensor lm: config"));
}

TEST(TensorParallelLm, WhatDoesNotDivideIsRefusedInOneLine) {
  testing::run_threads(3, [](Communicator& comm) {
    const std::string text =
        message_of<InvalidArgument>([&] { tensor_parallel_lm(small({4, false}), comm); });
    EXPECT_THAT(text, HasSubstr("q_proj.weight' has 4 heads, which do not divide among 3 parts"));
    EXPECT_EQ(text.find('\n'), std::string::npos);
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
  testing::run_threads(6, [](Communicator& comm) {
    LmConfig config = small({4, false});
    config.hidden_size = 48;
    config.num_attention_heads = 12;
    EXPECT_THAT(message_of<InvalidArgument>([&] { tensor_parallel_lm(config, comm); }),
                HasSubstr("k_proj.weight' has 4 heads, which do not divide among 6 parts"));
    TransformerLm lm(config, LmOptions{.initial = InitialParameters::kNone});
    EXPECT_THAT(message_of<InvalidArgument>([&] { lm->take_part(tensor_part(comm, false)); }),
                HasSubstr("12 heads and 4 key heads do not divide among 6 parts"));
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
  testing::run_threads(2, [](Communicator& comm) {
    TransformerLm lm = part_of(made(small({4, false})), comm, {4, false, true});
    const uint64_t before = comm.stats().collectives;
    const auto ids = at::zeros({5, 7}, at::kLong);
    EXPECT_THAT(message_of<InvalidArgument>([&] { lm->loss(ids, ids); }),
                HasSubstr("35 tokens do not divide among 2 parts"));
    EXPECT_EQ(comm.stats().collectives, before);
  });
  testing::run_threads(4, [](Communicator& comm) {
    LmConfig config = small({4, false});
    config.vocab_size = 3;
    EXPECT_THAT(message_of<InvalidArgument>([&] { tensor_parallel_lm(config, comm); }),
                HasSubstr("'model.embed_tokens.weight' has 3 rows"));
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
  // The model computes as the part that it expects to be, whatever a plan says.
  testing::run_threads(2, [](Communicator& comm) {
    TransformerLm lm(small({4, false}));
    const TensorPlan mlp({{"model.layers.*.mlp.gate_proj", TensorStyle::kColumn},
                          {"model.layers.*.mlp.up_proj", TensorStyle::kColumn},
                          {"model.layers.*.mlp.down_proj", TensorStyle::kRow}});
    EXPECT_THAT(message_of<InvalidArgument>([&] { parallelize(*lm, comm, mlp); }),
                HasSubstr("'model.embed_tokens.weight' is whole on each part by the plan, and "
                          "divided along dim 0 in a model of this kind"));
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
}

// As any other model: in place, with rank 0's values, by a plan; also where tokens of unequal sequences are divided, and
// parts are more than heads of keys.
TEST(TensorParallelLm, AModelIsDividedFromOutside) {
  for (const int64_t key_heads : {4, 1}) {
    const LmConfig config = small({key_heads, false});
    TransformerLm whole = made(config);
    const Batch batch = batch_of(0);
    const at::Tensor ids = batch.ids.flatten(), targets = batch.targets.flatten(),
                     lengths = at::tensor({12, 10, 14}, at::kLong);
    const at::Tensor loss = whole->loss(ids, targets, lengths);
    loss.backward();
    const auto gradients = gradients_of(whole);
    testing::run_threads(4, [&](Communicator& comm) {
      const Mesh mesh(comm, {{"context", 2}, {"tensor", 2}});
      TransformerLm lm(config, LmOptions{.initial = InitialParameters::kNone});
      lm->to(at::kDouble);
      {
        const at::NoGradGuard no_grad;
        const auto values = whole->named_parameters();
        for (auto& item : lm->named_parameters())
          item.value().copy_(values[item.key()] + mesh["tensor"].rank());  // rank 0's count
      }
      const TensorParts parts = parallelize(*lm, mesh["tensor"], lm_tensor_plan(config),
                                            {.divides_rows = true, .context = mesh["context"]});
      const at::Tensor mine = lm->loss(ids, targets, lengths);
      EXPECT_LT(difference(mine, loss), 1e-10);
      mine.backward();
      average_gradients(lm, mesh["context"]);
      expect_slices(gradients_of(lm), gradients, parts, 1e-10);
    });
  }
}

}  // namespace
}  // namespace lockstep::inline v0::tensor_parallel_lm_test
