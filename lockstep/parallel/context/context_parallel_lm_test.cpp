#include "lockstep/parallel/context/context_parallel_lm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/amp/autocast.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/model/lm_cache.h"
#include "lockstep/model/lm_values_test.h"
#include "lockstep/model/sampling.h"
#include "lockstep/model/vocabulary_loss.h"
#include "lockstep/parallel/context/context_layout.h"
#include "lockstep/parallel/context/token_part.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/pipeline/lm_chunks.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/shard/tensor_parallel_lm.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::context_parallel_lm_test {
namespace {

using ::testing::AllOf;
using testing::difference;
using testing::gradients_of;
using ::testing::HasSubstr;
using testing::made;
using testing::values_of;

constexpr ContextWay kWays[] = {ContextWay::kRing, ContextWay::kHeads};

// Twelve heads go to 1, 2, 3 or 4 ranks; four of keys do not go to 3.
LmConfig small(int64_t key_value_heads, bool tied = false) {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 48;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 12;
  config.num_key_value_heads = key_value_heads;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  config.tie_word_embeddings = tied;
  config.attention_bias = config.mlp_bias = tied;
  return config;
}

struct Batch {
  at::Tensor ids, targets, lengths;
  std::vector<int64_t> sequences;
};
at::Tensor words(int64_t count, int64_t step) {
  return (torch::arange(count, at::kLong) * 17 + step * 11).pow(2).remainder(50);
}
// Packed; some tokens have no target, most of them early ones, which are not one rank's alone.
Batch packed(const std::vector<int64_t>& lengths, int64_t step = 0) {
  const int64_t count = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  Batch batch{words(count, step), {}, torch::tensor(lengths, at::kLong), lengths};
  batch.targets = batch.ids.roll(-1, 0);
  if (count > 6) batch.targets.narrow(0, 0, 3).fill_(-100);
  return batch;
}
// [sequences, 9].
Batch even(int64_t sequences, int64_t step = 0) {
  Batch batch{words(sequences * 9, step).view({sequences, 9}), {}, {}, {}};
  batch.targets = batch.ids.roll(-1, 1);
  batch.targets[0].narrow(0, 0, 5).fill_(-100);
  batch.sequences.assign(static_cast<size_t>(sequences), 9);
  return batch;
}

void expect_same(const std::map<std::string, at::Tensor>& found,
                 const std::map<std::string, at::Tensor>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : found)
    EXPECT_LT(difference(value, expected.at(name)), tolerance) << name;
}

TEST(ContextParallelLm, LossLogitsScoresAndGradientsAreTheWholes) {
  const std::vector<Batch> batches{even(3), packed({5, 1, 12, 9}), packed({2, 2}), packed({40})};
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const double tolerance = type == at::kDouble ? 1e-10 : 1e-5;
    for (const auto& [key_heads, tied] : {std::pair{12, false}, {4, true}}) {
      TransformerLm whole = made(small(key_heads, tied), type);
      for (const Batch& batch : batches) {
        whole->zero_grad();
        const at::Tensor logits = whole(batch.ids, batch.lengths).detach();
        const TokenScores scores = whole->scores(batch.ids, batch.targets, batch.lengths);
        const at::Tensor loss = whole->loss(batch.ids, batch.targets, batch.lengths);
        loss.backward();
        const auto gradients = gradients_of(whole);
        for (const ContextWay way : kWays) {
          for (int size = 1; size <= 4; ++size) {
            testing::run_threads(size, [&](Communicator& comm) {
              TransformerLm lm = context_parallel_lm(whole, comm, {.way = way});
              const at::Tensor mine = lm(batch.ids, batch.lengths, batch.targets);
              EXPECT_LT(difference(mine, loss), tolerance);
              mine.backward();
              average_gradients(lm, comm);
              expect_same(gradients_of(lm), gradients, tolerance);

              const at::Tensor found = lm(batch.ids, batch.lengths);
              EXPECT_LT(difference(found, logits), tolerance);
              lm->zero_grad();
              next_token_loss(found, batch.targets).backward();
              average_gradients(lm, comm);
              expect_same(gradients_of(lm), gradients, tolerance);

              const TokenScores own = lm->scores(batch.ids, batch.targets, batch.lengths);
              EXPECT_LT(difference(own.losses, scores.losses), tolerance);
              EXPECT_TRUE(at::equal(own.likeliest, scores.likeliest));
            });
          }
        }
      }
    }
  }
}

TEST(ContextParallelLm, NoTargetsAtAllIsNoNumberAsInOneProcess) {
  TransformerLm whole = made(small(4));
  Batch batch = packed({7, 4});
  batch.targets.fill_(-100);
  EXPECT_TRUE(std::isnan(whole->loss(batch.ids, batch.targets, batch.lengths).item<double>()));
  testing::run_threads(2, [&](Communicator& comm) {
    TransformerLm lm = context_parallel_lm(whole, comm);
    EXPECT_TRUE(std::isnan(lm->loss(batch.ids, batch.targets, batch.lengths).item<double>()));
  });
}

template <typename Options>
auto optimizer_of(const TransformerLm& lm, const Options& options) {
  if constexpr (std::is_same_v<Options, torch::optim::SGDOptions>)
    return torch::optim::SGD(lm->parameters(), options);
  else
    return torch::optim::AdamW(lm->parameters(), options);
}

template <typename Model, typename Options>
void train(TransformerLm& lm, Model& model, const Options& options, int64_t steps, int64_t row = 0,
           int64_t rows = 4) {
  auto optimizer = optimizer_of(lm, options);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor ids = words(4 * 9, step).view({4, 9}), targets = ids.roll(-1, 1);
    optimizer.zero_grad();
    model->forward(ids.narrow(0, row, rows), at::Tensor(), targets.narrow(0, row, rows)).backward();
    optimizer.step();
  }
}

TEST(ContextParallelLm, ThreeStepsUnderDistributedDataParallelEndWhereOneProcessEnds) {
  constexpr int64_t kSteps = 3;
  const torch::optim::SGDOptions sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
  const torch::optim::AdamWOptions adam(1e-3);
  TransformerLm start = made(small(4)), by_sgd = made(small(4)), by_adam = made(small(4));
  train(by_sgd, by_sgd, sgd, kSteps);
  train(by_adam, by_adam, adam, kSteps);
  const auto end_of_sgd = values_of(by_sgd), end_of_adam = values_of(by_adam);
  EXPECT_GT(
      difference(end_of_sgd.at("model.norm.weight"), values_of(start).at("model.norm.weight")),
      1e-4);
  for (const ContextWay way : kWays) {
    for (const int size : {2, 3}) {
      testing::run_threads(size, [&](Communicator& comm) {
        TransformerLm first = context_parallel_lm(start, comm, {.way = way});
        auto ddp = std::make_shared<DistributedDataParallel<TransformerLm>>(first, comm);
        train(first, ddp, sgd, kSteps);
        expect_same(values_of(first), end_of_sgd, 1e-10);
        TransformerLm second = context_parallel_lm(start, comm, {.way = way});
        ddp = std::make_shared<DistributedDataParallel<TransformerLm>>(second, comm);
        train(second, ddp, adam, kSteps);
        expect_same(values_of(second), end_of_adam, 1e-10);
      });
    }
    testing::run_threads(4, [&](Communicator& comm) {
      const Mesh mesh(comm, {{"data", 2}, {"context", 2}});
      TransformerLm lm = context_parallel_lm(start, mesh["context"], {.way = way});
      auto ddp = std::make_shared<DistributedDataParallel<TransformerLm>>(
          lm, mesh.over({"data", "context"}));
      train(lm, ddp, sgd, kSteps, 2 * mesh.place("data"), 2);
      expect_same(values_of(lm), end_of_sgd, 1e-10);
    });
  }
}

TEST(ContextParallelLm, WithTensorParallelismItIsTheWhole) {
  const Batch batch = packed({13, 1, 8});
  for (const bool tied : {false, true}) {
    TransformerLm whole = made(small(4, tied));
    const at::Tensor logits = whole(batch.ids, batch.lengths).detach();
    const at::Tensor loss = whole->loss(batch.ids, batch.targets, batch.lengths);
    loss.backward();
    const auto gradients = gradients_of(whole);
    for (const ContextWay way : kWays) {
      testing::run_threads(4, [&](Communicator& comm) {
        const Mesh mesh(comm, {{"context", 2}, {"tensor", 2}});
        TransformerLm lm = tensor_parallel_lm(whole, mesh["tensor"]);
        lm->take_tokens(token_part(mesh["context"], way));
        const TensorParts parts = lm_tensor_parts(lm->config(), mesh["tensor"]);
        EXPECT_LT(difference(lm(batch.ids, batch.lengths), logits), 1e-10);
        const at::Tensor mine = lm->loss(batch.ids, batch.targets, batch.lengths);
        EXPECT_LT(difference(mine, loss), 1e-10);
        mine.backward();
        average_gradients(lm, mesh["context"]);
        for (const auto& [name, value] : gradients_of(lm)) {
          const PartSlice slice = parts.slice(name);
          const at::Tensor& all = gradients.at(name);
          EXPECT_LT(difference(value, slice.whole() ? all
                                                    : all.narrow(slice.dim, slice.begin,
                                                                 slice.end - slice.begin)),
                    1e-10)
              << name;
        }
      });
    }
  }
}

TEST(ContextParallelLm, EqualBitsEveryTimeAndTheSameLossOnAllRanks) {
  TransformerLm start = made(small(4), at::kFloat);
  const torch::optim::SGDOptions sgd(0.05);
  for (const ContextWay way : kWays) {
    std::vector<std::vector<std::map<std::string, at::Tensor>>> runs(
        2, std::vector<std::map<std::string, at::Tensor>>(3));
    for (auto& run : runs) {
      testing::run_threads(3, [&](Communicator& comm) {
        TransformerLm lm = context_parallel_lm(start, comm, {.way = way});
        auto ddp = std::make_shared<DistributedDataParallel<TransformerLm>>(lm, comm);
        train(lm, ddp, sgd, 5);
        run[static_cast<size_t>(comm.rank())] = values_of(lm);
        const Batch batch = packed({11, 20});
        const at::Tensor loss =
            lm->loss(batch.ids, batch.targets, batch.lengths).detach().view({1});
        EXPECT_TRUE(at::equal(comm.all_gather(loss), loss.expand({3})));
      });
    }
    for (size_t rank = 0; rank < 3; ++rank)
      for (const auto& [name, value] : runs[0][rank]) {
        EXPECT_TRUE(at::equal(value, runs[1][rank].at(name))) << name;
        EXPECT_TRUE(at::equal(value, runs[0][0].at(name))) << name;
      }
  }
}

TEST(ContextParallelLm, InBFloat16ItIsNearTheWhole) {
  TransformerLm whole = made(small(4), at::kFloat);
  const Batch batch = packed({13, 9});
  const at::Tensor loss = whole->loss(batch.ids, batch.targets, batch.lengths);
  loss.backward();
  const auto gradients = gradients_of(whole);
  for (const ContextWay way : kWays) {
    testing::run_threads(2, [&](Communicator& comm) {
      TransformerLm lm = context_parallel_lm(whole, comm, {.way = way});
      at::Tensor mine;
      {
        const amp::Autocast autocast(amp::AutocastSettings{});
        mine = lm->loss(batch.ids, batch.targets, batch.lengths);
      }
      mine.backward();
      average_gradients(lm, comm);
      EXPECT_LT(difference(mine, loss), 0.02);
      for (const auto& [name, found] : gradients_of(lm)) {
        const double away =
            ((found - gradients.at(name)).norm() / gradients.at(name).norm()).item<double>();
        EXPECT_LT(away, 0.1) << name;
        EXPECT_GT(away, 1e-5) << name;  // it is not float32
      }
    });
  }
}

// As a pipeline does: this rank's rows through the units. Weights' gradients may come later.
at::Tensor loss_by_units(TransformerLm& lm, const Batch& batch, const LmPassOptions& options) {
  const LmPass pass = lm->pass(batch.sequences, options);
  const at::Tensor own = lm->own_rows(batch.sequences);
  at::Tensor x = batch.ids.flatten().index_select(0, own);
  for (size_t i = 0; i + 1 < lm->units().size(); ++i) x = lm->units()[i]->forward(x, pass);
  return head_loss(*lm->units().back(), x, batch.targets.flatten().index_select(0, own), pass);
}

// Masks are one process's in every bit, so the numbers are, but for the order of sums. Also of a part of a batch.
TEST(ContextParallelLm, DropoutIsTheWholes) {
  LmConfig config = small(4, true);
  config.hidden_dropout = 0.2;
  TransformerLm whole = made(config);
  const Batch batch = packed({9, 5, 14});
  for (const int64_t first_row : {0, 100}) {
    const LmPassOptions options{.first_row = first_row, .dropout_seed = 77};
    whole->zero_grad();
    const at::Tensor loss = loss_by_units(whole, batch, options);
    loss.backward();
    const auto gradients = gradients_of(whole);
    whole->eval();
    const auto undropped = whole->loss(batch.ids, batch.targets, batch.lengths).item<double>();
    whole->train();
    EXPECT_GT(std::abs(undropped - loss.item<double>()), 1e-3);
    for (const int size : {2, 3}) {
      testing::run_threads(size, [&](Communicator& comm) {
        TransformerLm lm = context_parallel_lm(whole, comm);
        const at::Tensor mine = loss_by_units(lm, batch, options);
        EXPECT_LT(difference(mine, loss), 1e-10);
        mine.backward();
        average_gradients(lm, comm);
        expect_same(gradients_of(lm), gradients, 1e-10);
        // Without a seed the ranks agree on one: otherwise the loss would be none of one mask.
        const at::Tensor drawn =
            lm->loss(batch.ids, batch.targets, batch.lengths).detach().view({1});
        EXPECT_TRUE(at::equal(comm.all_gather(drawn), drawn.expand({size})));
        EXPECT_GT(std::abs(drawn.item<double>() - undropped), 1e-6);
      });
    }
  }
}

// Sequence parallelism: between the products a part has some of its rank's rows. Dropout included.
TEST(ContextParallelLm, WithRowsThatTensorPartsDivideItIsTheWhole) {
  LmConfig config = small(4, true);
  config.hidden_dropout = 0.2;
  TransformerLm whole = made(config);
  const Batch batch = packed({12, 8, 4});
  const LmPassOptions seeded{.first_row = 7, .dropout_seed = 5};
  const at::Tensor loss = loss_by_units(whole, batch, seeded);
  loss.backward();
  const auto gradients = gradients_of(whole);
  for (const ContextWay way : kWays) {
    testing::run_threads(4, [&](Communicator& comm) {
      const Mesh mesh(comm, {{"context", 2}, {"tensor", 2}});
      TransformerLm lm = tensor_parallel_lm(whole, mesh["tensor"], {.divides_rows = true});
      lm->take_tokens(token_part(mesh["context"], way));
      const TensorParts parts = lm_tensor_parts(config, mesh["tensor"]);
      const at::Tensor mine = loss_by_units(lm, batch, seeded);
      EXPECT_LT(difference(mine, loss), 1e-10);
      mine.backward();
      average_gradients(lm, mesh["context"]);
      for (const auto& [name, value] : gradients_of(lm)) {
        const PartSlice slice = parts.slice(name);
        const at::Tensor& all = gradients.at(name);
        EXPECT_LT(difference(value, slice.whole() ? all
                                                  : all.narrow(slice.dim, slice.begin,
                                                               slice.end - slice.begin)),
                  1e-10)
            << name;
      }
    });
  }
}

// Of 5 tokens one rank has 3 and the other 2, which would divide among its parts: neither goes on alone.
TEST(ContextParallelLm, RowsThatDoNotDivideOnOneRankAreRefusedOnAll) {
  TransformerLm whole = made(small(4));
  testing::run_threads(4, [&](Communicator& comm) {
    const Mesh mesh(comm, {{"context", 2}, {"tensor", 2}});
    TransformerLm lm = tensor_parallel_lm(whole, mesh["tensor"], {.divides_rows = true});
    lm->take_tokens(token_part(mesh["context"]));
    const uint64_t before = mesh["context"].stats().collectives;
    EXPECT_THAT(message_of<InvalidArgument>([&] { lm->pass({5}); }),
                HasSubstr("3 tokens do not divide among 2 parts"));
    EXPECT_EQ(mesh["context"].stats().collectives, before);
  });
}

// Each stage's ranks along "context" have the same micro-batches, and their rows of them. Dropout included.
TEST(ContextParallelLm, StagesOfAPipelineAreTheWhole) {
  LmConfig config = small(4);
  config.hidden_dropout = 0.1;
  TransformerLm whole = made(config);
  const std::vector<std::vector<int64_t>> micro_batches{{9, 5}, {14}, {4, 4, 8}, {11}};
  const Batch batch = packed({9, 5, 14, 4, 4, 8, 11});
  const at::Tensor loss = loss_by_units(whole, batch, {.dropout_seed = 31});
  loss.backward();
  const auto gradients = gradients_of(whole);
  const auto count = batch.targets.ne(-100).sum().item<double>();
  for (const char* name : {"1f1b", "zb-h1"}) {
    for (const ContextWay way : kWays) {
      testing::run_threads(4, [&](Communicator& comm) {
        const Mesh mesh(comm, {{"pipe", 2}, {"context", 2}});
        const int stage = mesh.place("pipe");
        TransformerLm lm = context_parallel_lm(whole, mesh["context"], {.way = way});
        const PipelineSchedule schedule = make_schedule(name, {.stages = 2, .micro_batches = 4});
        LmChunks chunks(lm, {2, 3});
        Pipeline pipeline(mesh["pipe"], schedule, chunks.chunks_of(schedule, stage));
        // This rank's rows of all micro-batches are those of all sequences.
        const at::Tensor own = lm->own_rows(batch.sequences);
        const at::Tensor ids = batch.ids.index_select(0, own),
                         targets = batch.targets.index_select(0, own);
        const double share = pipeline.step(
            {.rows = chunks.begin(micro_batches, 31),
             .input = [&](const MicroBatch& mb) { return ids.narrow(0, mb.first_row, mb.rows); },
             .loss =
                 [&](const at::Tensor& logits, const MicroBatch& mb) {
                   return divided_loss(logits, targets.narrow(0, mb.first_row, mb.rows), count / 2);
                 }});
        const at::Tensor mean = torch::full({}, share, at::kDouble);
        mesh["context"].all_reduce(mean, ReduceOp::kAvg);
        EXPECT_LT(difference(mean, loss), 1e-10);
        NamedTensors mine;
        for (const std::string& parameter : chunks.parameters_of(schedule, stage))
          mine.emplace_back(parameter, lm->named_parameters()[parameter]);
        average_gradients(mine, mesh["context"]);
        for (const auto& [parameter, tensor] : mine)
          EXPECT_LT(difference(tensor.grad(), gradients.at(parameter)), 1e-10) << parameter;
      });
    }
  }
}

TEST(ContextParallelLm, GradientsOfWeightsMayComeLater) {
  TransformerLm whole = made(small(4), at::kFloat);
  const Batch batch = packed({9, 5, 14});
  loss_by_units(whole, batch, {}).backward();
  const auto gradients = gradients_of(whole);
  testing::run_threads(2, [&](Communicator& comm) {
    TransformerLm lm = context_parallel_lm(whole, comm);
    const LmPassOptions options{.deferred = make_deferred()};
    loss_by_units(lm, batch, options).backward();
    EXPECT_FALSE(lm->named_parameters()["lm_head.weight"].grad().defined());
    run_deferred(*options.deferred);
    average_gradients(lm, comm);
    expect_same(gradients_of(lm), gradients, 1e-5);
  });
}

TEST(ContextParallelLm, FrozenParametersHooksAndLayersThatAreComputedAgain) {
  TransformerLm whole = made(small(4));
  for (auto& item : whole->named_parameters())
    if (item.key().find("embed_tokens") != std::string::npos ||
        item.key().find("layers.0") != std::string::npos ||
        item.key().find("layers.1.self_attn.q_proj") != std::string::npos)
      item.value().set_requires_grad(false);
  const Batch batch = packed({17, 6});
  const at::Tensor loss = whole->loss(batch.ids, batch.targets, batch.lengths);
  loss.backward();
  const auto gradients = gradients_of(whole);
  EXPECT_LT(gradients.size(), whole->parameters().size());
  for (const ContextWay way : kWays) {
    testing::run_threads(2, [&](Communicator& comm) {
      TransformerLm lm = context_parallel_lm(whole, comm, {.way = way});
      checkpoint_layers<LmUnit::Signature>(*lm, {.names = {"model.layers.*"}, .every = 1});
      // Its logits are computed then.
      int calls = 0;
      wrap_forward<LmUnit::Signature>(
          *lm, "lm_head",
          [&calls](const auto& forward, const at::Tensor& rows, const LmPass& pass) {
            ++calls;
            return forward(rows, pass);
          });
      const at::Tensor mine = lm->loss(batch.ids, batch.targets, batch.lengths);
      EXPECT_LT(difference(mine, loss), 1e-10);
      const auto sent = [&] {
        return comm.stats().of(Op::kSend).bytes + comm.stats().of(Op::kAllToAll).bytes;
      };
      const uint64_t forward = sent();
      mine.backward();
      average_gradients(lm, comm);
      expect_same(gradients_of(lm), gradients, 1e-10);
      EXPECT_EQ(calls, 1);
      // Of one layer of two, whose forward is sent again: forward's half, and its backward.
      EXPECT_GT(sent() - forward, forward);
    });
  }
}

TEST(ContextParallelLm, WhatIsSentIsWhatTheorySays) {
  TransformerLm whole = made(small(4));
  const Batch batch = packed({24, 7});
  testing::run_threads(3, [&](Communicator& comm) {
    TransformerLm lm = context_parallel_lm(whole, comm);
    const CommunicatorStats before = comm.stats();
    const at::Tensor loss = lm->loss(batch.ids, batch.targets, batch.lengths);
    const CommunicatorStats between = comm.stats();
    loss.backward();
    const CommunicatorStats after = comm.stats();
    // Lengths and ids; the number of targets; the loss.
    EXPECT_EQ(between.of(Op::kAllReduce).bytes - before.of(Op::kAllReduce).bytes, 3u * 8);
    EXPECT_EQ(between.collectives - before.collectives, 3u);
    EXPECT_EQ(after.collectives, between.collectives);
    // Two layers; keys and values of 4 heads of 4 columns.
    const auto bytes = [&](int64_t back) {
      return static_cast<uint64_t>(context_count(batch.sequences, (comm.rank() - back + 3) % 3, 3) *
                                   2 * 4 * 4 * 8);
    };
    const uint64_t once = 2 * (bytes(0) + bytes(1)), round = once + 2 * bytes(2);
    EXPECT_EQ(between.of(Op::kSend).bytes - before.of(Op::kSend).bytes, once);
    EXPECT_EQ(after.of(Op::kSend).bytes - between.of(Op::kSend).bytes, once + round);
  });
}

TEST(ContextParallelLm, RanksThatDifferAreTold) {
  TransformerLm whole = made(small(4));
  const auto says = [](const std::function<void(Communicator&)>& fn) {
    return message_of<Mismatch>([&] { testing::run_threads(2, fn); });
  };
  for (const ContextWay way : kWays) {
    EXPECT_THAT(says([&](Communicator& comm) {
                  // As many rows on each, of other sequences.
                  const Batch batch = comm.rank() == 0 ? packed({8, 4}) : packed({4, 8});
                  context_parallel_lm(whole, comm, {.way = way})
                      ->loss(batch.ids, batch.targets, batch.lengths);
                }),
                AllOf(HasSubstr("context: lengths"), HasSubstr("rank 0"), HasSubstr("rank 1")));
  }
  EXPECT_THAT(says([&](Communicator& comm) {
                const Batch batch = packed({8, 4}, comm.rank());
                context_parallel_lm(whole, comm)->loss(batch.ids, batch.targets, batch.lengths);
              }),
              HasSubstr("ids"));
  EXPECT_THAT(says([&](Communicator& comm) {
                LmConfig config = small(4);
                config.num_hidden_layers += comm.rank();
                context_parallel_lm(config, comm);
              }),
              HasSubstr("context lm by ring: config"));
  EXPECT_THAT(says([&](Communicator& comm) {
                context_parallel_lm(whole, comm, {.way = kWays[comm.rank()]});
              }),
              HasSubstr("context lm by heads: config"));
}

TEST(ContextParallelLm, BadInputIsOneLineAndNothingIsSent) {
  TransformerLm whole = made(small(4));
  testing::run_threads(2, [&](Communicator& comm) {
    const auto line = [&](const auto& call) {
      const std::string text = message_of<InvalidArgument>(call);
      EXPECT_EQ(text.find('\n'), std::string::npos);
      return text;
    };
    LmConfig drops = small(4);
    drops.attention_dropout = 0.1;
    EXPECT_THAT(line([&] { context_parallel_lm(drops, comm); }),
                HasSubstr("attention_dropout is 0.1"));
    LmConfig three = small(0);
    three.num_attention_heads = 3;
    EXPECT_THAT(line([&] { context_parallel_lm(three, comm, {.way = ContextWay::kHeads}); }),
                HasSubstr("3 heads do not divide among 2 ranks"));
    EXPECT_EQ(comm.stats().collectives, 0u);

    TransformerLm lm = context_parallel_lm(whole, comm);
    const uint64_t before = comm.stats().collectives;
    Batch batch = packed({8, 4});
    EXPECT_THAT(line([&] { lm->loss(batch.ids, batch.targets, torch::tensor({8, 5}, at::kLong)); }),
                HasSubstr("lengths sum to 13"));
    EXPECT_THAT(line([&] { lm->pass({65}); }), HasSubstr("a sequence of 65 tokens"));
    const at::Tensor ids = batch.ids.clone();
    ids[11] = 50;
    EXPECT_THAT(line([&] { lm->loss(ids, batch.targets, batch.lengths); }),
                HasSubstr("the id 50 is outside"));
    batch.targets[5] = 50;
    EXPECT_THAT(line([&] { lm->loss(batch.ids, batch.targets, batch.lengths); }),
                HasSubstr("the target 50 is outside the vocabulary of 50; -100 is for none"));
    LmCache cache(lm->config(), 1, 8, at::TensorOptions(at::kDouble));
    EXPECT_THAT(line([&] { lm->next(batch.ids.view({1, 12}), cache); }),
                HasSubstr("next() is for a model that has whole sequences"));
    EXPECT_THAT(line([&] { generate(lm, {1, 2}, {.max_new_tokens = 2}); }),
                HasSubstr("next() is for a model that has whole sequences"));
    const LmPass pass = lm->pass({8, 4});
    EXPECT_THAT(line([&] { lm->units()[1]->forward(torch::zeros({12, 48}, at::kDouble), pass); }),
                HasSubstr("12 rows, and the pass has 6 tokens"));
    EXPECT_EQ(comm.stats().collectives, before + 1);
  });
}

// Drawn on rank 0: ranks that are threads share a generator, so the others draw other values.
TEST(ContextParallelLm, AllRanksHaveTheFirstOnesValues) {
  testing::run_threads(3, [](Communicator& comm) {
    TransformerLm lm = context_parallel_lm(small(4), comm);
    for (const at::Tensor& parameter : lm->parameters()) {
      const at::Tensor all = comm.all_gather(parameter.detach().unsqueeze(0));
      EXPECT_TRUE(at::equal(all, parameter.detach().unsqueeze(0).expand_as(all)));
    }
  });
}

}  // namespace
}  // namespace lockstep::inline v0::context_parallel_lm_test
