#include "lockstep/parallel/expert/expert_parallel_lm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/model/lm_values_test.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/expert/expert_exchange.h"
#include "lockstep/parallel/tensor/tensor_parts.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/shard/parallelize.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::expert_parallel_lm_test {
namespace {

using testing::difference;
using testing::gradients_of;
using ::testing::HasSubstr;
using testing::Values;
using testing::values_of;

struct Kind {
  int64_t chosen = 2;
  int64_t shared = 0;
};
const std::vector<Kind> kKinds{{1, 0}, {2, 0}, {2, 20}};

LmConfig small(const Kind& kind) {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 20;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  config.num_local_experts = 4;
  config.num_experts_per_tok = kind.chosen;
  config.shared_expert_intermediate_size = kind.shared;
  config.router_aux_loss_coef = 0.1;
  config.router_z_loss_coef = 0.01;
  return config;
}

TransformerLm made(const LmConfig& config, at::ScalarType type = at::kDouble) {
  torch::manual_seed(3);
  TransformerLm lm(config);
  lm->to(type);
  return lm;
}

struct Batch {
  at::Tensor ids, targets;
  Batch rows(int64_t first, int64_t count) const {
    return {ids.narrow(0, first, count), targets.narrow(0, first, count)};
  }
};
Batch batch_of(int64_t step, int64_t sequences = 4) {
  const int64_t count = sequences * 9;
  const at::Tensor ids =
      (torch::arange(count, at::kLong) * 17 + step * 11).pow(2).remainder(50).view({sequences, 9});
  return {ids, ids.roll(-1, 1)};
}

// This rank's experts, and all else.
void expect_parts(const Values& mine, const Values& whole, int experts, double tolerance,
                  double least = 1e-12) {
  size_t of_whole = 0;
  for (const auto& [name, value] : mine) {
    EXPECT_LT(difference(value, whole.at(name), least), tolerance) << name;
    of_whole += is_expert_parameter(name) ? static_cast<size_t>(experts) : 1;
  }
  EXPECT_EQ(of_whole, whole.size());
}

// Experts' gradients over those with the same experts, others' over all.
void average(TransformerLm& lm, Communicator& same_experts, Communicator& tokens) {
  const LmGradients by = split_gradients(parameters_of(lm));
  if (same_experts.size() > 1) average_gradients(by.experts, same_experts);
  average_gradients(by.others, tokens);
}

template <typename Optimizer, typename Options>
void train(TransformerLm& lm, const Options& options, int64_t steps,
           const std::function<void()>& synchronize = {}, int64_t row = 0, int64_t rows = 4) {
  Optimizer optimizer(lm->parameters(), options);
  for (int64_t step = 0; step < steps; ++step) {
    const auto [ids, targets] = batch_of(step).rows(row, rows);
    optimizer.zero_grad();
    lm->forward(ids, {}, targets).backward();
    if (synchronize) synchronize();
    optimizer.step();
  }
}

// The ranks alone with an axis "expert": no other axis, so nobody has the same experts.
void average_over(TransformerLm& lm, Communicator& comm) {
  average_gradients(split_gradients(parameters_of(lm)).others, comm);
}

TEST(ExpertParallelLm, LossLogitsAndGradientsAreOneProcesss) {
  for (const Kind& kind : kKinds) {
    for (const bool by_layer : {false, true}) {
      LmConfig config = small(kind);
      config.router_aux_loss_by_layer = by_layer;
      TransformerLm whole = made(config);
      const Batch batch = batch_of(0);
      const at::Tensor logits = whole(batch.ids).detach();
      const at::Tensor loss = whole->loss(batch.ids, batch.targets);
      loss.backward();
      const auto gradients = gradients_of(whole);
      const auto statistics = whole->routers();
      for (const int size : {1, 2, 4}) {
        testing::run_threads(size, [&](Communicator& comm) {
          TransformerLm lm = expert_parallel_lm(whole, comm, comm);
          const int64_t each = 4 / size, row = each * comm.rank();
          const Batch mine = batch.rows(row, each);
          EXPECT_LT(difference(lm(mine.ids), logits.narrow(0, row, each)), 1e-10);
          const at::Tensor part = lm->loss(mine.ids, mine.targets);
          const at::Tensor mean = part.detach().clone();
          comm.all_reduce(mean, ReduceOp::kAvg);
          EXPECT_LT(difference(mean, loss), 1e-10);
          part.backward();
          average_over(lm, comm);
          expect_parts(gradients_of(lm), gradients, size, 1e-10);
          for (size_t layer = 0; layer < 2; ++layer) {
            EXPECT_EQ(lm->routers()[layer].choices, statistics[layer].choices);
            EXPECT_NEAR(lm->routers()[layer].entropy, statistics[layer].entropy, 1e-12);
          }
        });
      }
    }
  }
}

TEST(ExpertParallelLm, EqualBitsEveryTime) {
  TransformerLm start = made(small({2, 20}), at::kFloat);
  for (const int size : {2, 4}) {
    std::vector<std::vector<Values>> runs(2, std::vector<Values>(static_cast<size_t>(size)));
    for (auto& run : runs) {
      testing::run_threads(size, [&](Communicator& comm) {
        TransformerLm lm = expert_parallel_lm(start, comm, comm);
        const int64_t each = 4 / size;
        train<torch::optim::SGD>(
            lm, torch::optim::SGDOptions(0.05), 3, [&] { average_over(lm, comm); },
            each * comm.rank(), each);
        run[static_cast<size_t>(comm.rank())] = values_of(lm);
      });
    }
    for (size_t rank = 0; rank < static_cast<size_t>(size); ++rank)
      for (const auto& [name, value] : runs[0][rank])
        EXPECT_TRUE(at::equal(value, runs[1][rank].at(name))) << name;
  }
}

// In float32, by the nodes.
TEST(ExpertParallelLm, InFloat32ItIsNearOneProcess) {
  TransformerLm whole = made(small({2, 20}), at::kFloat);
  const Batch batch = batch_of(0);
  whole->loss(batch.ids, batch.targets).backward();
  const auto gradients = gradients_of(whole);
  testing::run_threads(2, [&](Communicator& comm) {
    TransformerLm lm = expert_parallel_lm(whole, comm, comm);
    const Batch mine = batch.rows(2 * comm.rank(), 2);
    lm->loss(mine.ids, mine.targets).backward();
    average_over(lm, comm);
    expect_parts(gradients_of(lm), gradients, 2, 2e-5);
  });
}

// All tokens of all ranks, or of one, are alike and go to the same experts: others have none.
TEST(ExpertParallelLm, ExpertsWithoutTokens) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    TransformerLm whole = made(small({1, 0}), type), alone = made(small({1, 0}), type);
    for (const bool everywhere : {false, true}) {
      const Batch batch = batch_of(0);
      batch.ids.narrow(0, 0, everywhere ? 4 : 2).fill_(7);
      whole->zero_grad();
      whole->loss(batch.ids, batch.targets).backward();
      const auto gradients = gradients_of(whole);
      // Among equal tokens it makes no difference which one is looked at: the gradients of queries and keys are
      // zero but for rounding, which is another one on every processor.
      double greatest = 0;
      for (const auto& [name, gradient] : gradients)
        greatest = std::max(greatest, gradient.abs().max().item<double>());
      const auto choices = whole->routers()[0].choices;
      // Of one kind of token, on the first rank or on both.
      const auto idle = std::count(choices.begin(), choices.end(), 0);
      EXPECT_EQ(idle == 3, everywhere);
      testing::run_threads(2, [&](Communicator& comm) {
        TransformerLm lm = expert_parallel_lm(whole, comm, comm);
        const Batch mine = batch.rows(2 * comm.rank(), 2);
        lm->loss(mine.ids, mine.targets).backward();
        average_over(lm, comm);
        if (!everywhere && comm.rank() == 0) {
          alone(mine.ids);
          const auto own = alone->routers()[0].choices;
          EXPECT_EQ(std::count(own.begin(), own.end(), 0), 3);
        }
        for (const auto& item : lm->named_parameters())
          ASSERT_TRUE(item.value().grad().defined()) << item.key();
        expect_parts(gradients_of(lm), gradients, 2, type == at::kDouble ? 1e-10 : 1e-4,
                     1e-3 * greatest);
      });
    }
  }
}

// Each rank leaves out tokens of its own, as it would alone with a model of all experts.
TEST(ExpertParallelLm, CapacityIsOfARanksTokens) {
  LmConfig config = small({2, 0});
  config.capacity_factor = 0.75;
  TransformerLm whole = made(config);
  // Ranks that are threads share a generator: nothing is drawn there.
  std::vector<TransformerLm> each{made(config), made(config)};
  testing::run_threads(2, [&](Communicator& comm) {
    const Batch mine = batch_of(0).rows(2 * comm.rank(), 2);
    TransformerLm alone = each[static_cast<size_t>(comm.rank())];
    const at::Tensor expected = alone->forward(mine.ids);
    EXPECT_GT(alone->routers()[0].left_out, 0);
    TransformerLm lm = expert_parallel_lm(whole, comm, comm);
    EXPECT_LT(difference(lm(mine.ids), expected), 1e-10);
    EXPECT_EQ(lm->routers()[0].left_out, alone->routers()[0].left_out);
  });
}

TEST(ExpertParallelLm, LayersMayBeComputedAgain) {
  TransformerLm whole = made(small({2, 0})), start = made(small({2, 0}));
  const Batch batch = batch_of(0);
  whole->loss(batch.ids, batch.targets).backward();
  const auto gradients = gradients_of(whole);
  whole->zero_grad();
  {
    const auto handles =
        checkpoint_layers<LmUnit::Signature>(*whole, {.names = {"model.layers.*"}, .every = 1});
    whole->loss(batch.ids, batch.targets).backward();
    expect_parts(gradients_of(whole), gradients, 1, 1e-12);
  }
  testing::run_threads(2, [&](Communicator& comm) {
    TransformerLm lm = expert_parallel_lm(start, comm, comm);
    checkpoint_layers<LmUnit::Signature>(*lm, {.names = {"model.layers.*"}, .every = 1});
    const Batch mine = batch.rows(2 * comm.rank(), 2);
    lm->loss(mine.ids, mine.targets).backward();
    average_over(lm, comm);
    expect_parts(gradients_of(lm), gradients, 2, 1e-10);
  });
}

TEST(ExpertParallelLm, PartsAreFilledWithoutAWhole) {
  for (const Kind& kind : kKinds) {
    const LmConfig config = small(kind);
    torch::manual_seed(5);
    const TransformerLm whole(config);
    const auto expected = values_of(whole);
    torch::manual_seed(5);
    const TransformerLm empty(config, LmOptions{.initial = InitialParameters::kNone});
    const ParameterParts drawn = empty->drawn_parts();
    testing::run_threads(4, [&](Communicator& comm) {
      const TransformerLm lm = expert_parallel_lm(config, comm, comm, drawn);
      expect_parts(values_of(lm), expected, 4, 1e-30);
    });
  }
}

TEST(ExpertParallelLm, PartsPutTogetherAreAWholeModel) {
  for (const Kind& kind : {Kind{2, 0}, Kind{2, 20}}) {
    TransformerLm start = made(small(kind));
    const auto expected = parameters_of(start);
    testing::run_threads(4, [&](Communicator& comm) {
      TransformerLm lm = expert_parallel_lm(start, comm, comm);
      const NamedTensors whole = lm_expert_parts(lm->config(), comm).gather(parameters_of(lm), 1);
      if (comm.rank() != 1) {
        EXPECT_TRUE(whole.empty());
        return;
      }
      ASSERT_EQ(whole.size(), expected.size());
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(whole[i].first, expected[i].first);
        EXPECT_TRUE(at::equal(whole[i].second, expected[i].second)) << whole[i].first;
      }
    });
  }
}

TEST(ExpertParallelLm, GradientsAreClippedByTheWholesNorm) {
  TransformerLm whole = made(small({2, 0})), start = made(small({2, 0}));
  const Batch batch = batch_of(0);
  whole->loss(batch.ids, batch.targets).backward();
  const double norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.5);
  const auto clipped = gradients_of(whole);
  testing::run_threads(2, [&](Communicator& comm) {
    TransformerLm lm = expert_parallel_lm(start, comm, comm);
    const Batch mine = batch.rows(2 * comm.rank(), 2);
    lm->loss(mine.ids, mine.targets).backward();
    average_over(lm, comm);
    TensorParts parts = lm_expert_parts(lm->config(), comm);
    EXPECT_NEAR(parts.clip_gradients(parameters_of(lm), 0.5), norm, 1e-10);
    expect_parts(gradients_of(lm), clipped, 2, 1e-10);
    EXPECT_THROW(parts.clip_gradients(parameters_of(lm), 0), InvalidArgument);
  });
}

// A row goes to an expert of each other rank and back, forward and backward; counts once a layer.
TEST(ExpertParallelLm, WhatIsSentIsWhatTheorySays) {
  LmConfig config = small({2, 0});
  TransformerLm whole = made(config);
  testing::run_threads(4, [&](Communicator& comm) {
    TransformerLm lm = expert_parallel_lm(whole, comm, comm);
    const Batch mine = batch_of(0).rows(comm.rank(), 1);
    const auto start = comm.stats();
    const at::Tensor loss = lm->loss(mine.ids, mine.targets);
    const auto between = comm.stats();
    loss.backward();
    const auto end = comm.stats();
    const uint64_t layers = 2, rows = 9 * 2, ranks = 4, experts = 4;
    // What this rank sends to experts is sure; what its experts send back is as many rows as came.
    EXPECT_EQ(between.of(Op::kAllToAll).calls - start.of(Op::kAllToAll).calls, 2 * layers);
    EXPECT_EQ(end.of(Op::kAllToAll).calls - between.of(Op::kAllToAll).calls, 2 * layers);
    const at::Tensor sent = torch::tensor(
        {static_cast<int64_t>(between.of(Op::kAllToAll).bytes - start.of(Op::kAllToAll).bytes),
         static_cast<int64_t>(end.of(Op::kAllToAll).bytes - between.of(Op::kAllToAll).bytes)});
    EXPECT_EQ(between.of(Op::kAllReduce).calls - start.of(Op::kAllReduce).calls, layers + 1);
    EXPECT_EQ(between.of(Op::kAllReduce).bytes - start.of(Op::kAllReduce).bytes,
              layers * ranks * experts * 8 + layers * (2 * experts + 4) * 8);
    EXPECT_EQ(end.of(Op::kAllReduce).bytes - between.of(Op::kAllReduce).bytes, layers);
    comm.all_reduce(sent);
    const auto all_rows = static_cast<int64_t>(2 * layers * rows * ranks * 32 * sizeof(double));
    EXPECT_EQ(sent[0].item<int64_t>(), all_rows);
    EXPECT_EQ(sent[1].item<int64_t>(), all_rows);
  });
}

// Two Reducers average while backward goes on: one for each list.
TEST(ExpertParallelLm, WithDataParallelismItIsOneProcess) {
  constexpr int64_t kSteps = 3;
  const torch::optim::SGDOptions sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
  for (const Kind& kind : {Kind{1, 0}, Kind{2, 20}}) {
    TransformerLm start = made(small(kind)), one = made(small(kind));
    train<torch::optim::SGD>(one, sgd, kSteps);
    const auto end = values_of(one);
    testing::run_threads(4, [&](Communicator& comm) {
      const Mesh mesh(comm, {{"data", 2}, {"expert", 2}});
      Communicator& tokens = mesh.over({"data", "expert"});
      const int64_t row = comm.rank();
      TransformerLm lm = expert_parallel_lm(start, mesh["expert"], tokens);
      train<torch::optim::SGD>(lm, sgd, kSteps, [&] { average(lm, mesh["data"], tokens); }, row, 1);
      expect_parts(values_of(lm), end, 2, 1e-10);

      TransformerLm reduced = expert_parallel_lm(start, mesh["expert"], tokens);
      const LmGradients by = split_gradients(parameters_of(reduced));
      Reducer of_experts(by.experts, mesh["data"]), of_others(by.others, tokens);
      torch::optim::SGD optimizer(reduced->parameters(), sgd);
      for (int64_t step = 0; step < kSteps; ++step) {
        const Batch mine = batch_of(step).rows(row, 1);
        optimizer.zero_grad();
        of_experts.before_forward();
        of_others.before_forward();
        reduced->forward(mine.ids, {}, mine.targets).backward();
        optimizer.step();
      }
      expect_parts(values_of(reduced), end, 2, 1e-10);
    });
  }
}

// The inner columns of each expert divided among parts, and the experts among ranks.
TEST(ExpertParallelLm, WithTensorParallelismItIsOneProcess) {
  for (const Kind& kind : {Kind{1, 0}, Kind{2, 0}, Kind{2, 20}}) {
    const LmConfig config = small(kind);
    TransformerLm whole = made(config);
    const Batch batch = batch_of(0);
    const at::Tensor loss = whole->loss(batch.ids, batch.targets);
    loss.backward();
    const auto gradients = gradients_of(whole);
    NamedShapes shapes = lm_parameter_shapes(config);
    const auto parameters = parameters_of(whole);
    ASSERT_EQ(shapes.size(), parameters.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_EQ(shapes[i].first, parameters[i].first);
      EXPECT_EQ(at::IntArrayRef(shapes[i].second), parameters[i].second.sizes());
    }
    for (const bool divides_rows : {false, true}) {
      testing::run_threads(4, [&](Communicator& comm) {
        const Mesh mesh(comm, {{"expert", 2}, {"tensor", 2}});
        Communicator &tensor = mesh["tensor"], &expert = mesh["expert"];
        TransformerLm lm(config, LmOptions{.initial = InitialParameters::kNone,
                                           .experts = experts_over(expert, expert)});
        const auto nothing = [](const std::string&, int64_t, const at::Tensor&) {};
        parallelize(*lm, tensor, lm_tensor_plan(config),
                    {.divides_rows = divides_rows, .values = nothing});
        lm->to(at::kDouble);
        const TensorParts parts = lm_tensor_parts(config, tensor);
        parts.copy(parameters_of(lm), parameters);
        const Batch mine = batch.rows(2 * expert.rank(), 2);
        const at::Tensor part = lm->loss(mine.ids, mine.targets);
        part.backward();
        average_over(lm, expert);
        const at::Tensor mean = part.detach().clone();
        expert.all_reduce(mean, ReduceOp::kAvg);
        EXPECT_LT(difference(mean, loss), 1e-10);
        for (const auto& [name, gradient] : gradients_of(lm)) {
          const PartSlice slice = parts.slice(name);
          const at::Tensor& all = gradients.at(name);
          EXPECT_LT(difference(gradient, slice.whole() ? all
                                                       : all.narrow(slice.dim, slice.begin,
                                                                    slice.end - slice.begin)),
                    1e-10)
              << name << " " << divides_rows;
        }
      });
    }
  }
}

TEST(ExpertParallelLm, ARankThatDiffersIsAMismatch) {
  const auto says = [](const std::function<void(Communicator&)>& fn) {
    return message_of<Mismatch>([&] { testing::run_threads(2, fn); });
  };
  EXPECT_THAT(says([&](Communicator& comm) {
                LmConfig config = small({2, 0});
                config.num_experts_per_tok += comm.rank();
                expert_parallel_lm(config, comm, comm,
                                   [](const std::string&, int64_t, const at::Tensor&) {});
              }),
              HasSubstr("expert lm: config"));
  // A rank that skips the first layer.
  const TransformerLm whole = made(small({2, 0}));
  EXPECT_THAT(says([&](Communicator& comm) {
                TransformerLm lm = expert_parallel_lm(whole, comm, comm);
                const LmPass pass = lm->pass({9, 9});
                at::Tensor x = batch_of(0).rows(0, 2).ids.reshape({18});
                for (size_t i = 0; i < lm->units().size(); ++i)
                  if (i != 1 || comm.rank() == 0) x = lm->units()[i]->forward(x, pass);
              }),
              HasSubstr("expert: counts of layer"));
}

TEST(ExpertParallelLm, WhatDoesNotDivideIsRefusedInOneLine) {
  const auto refused = [](const LmConfig& config) {
    std::string line;
    testing::run_threads(3, [&](Communicator& comm) {
      const std::string mine =
          message_of<InvalidArgument>([&] { expert_parallel_lm(config, comm, comm); });
      EXPECT_EQ(mine.find('\n'), std::string::npos);
      EXPECT_EQ(comm.stats().collectives, 0u);
      if (comm.rank() == 0) line = mine;
    });
    return line;
  };
  EXPECT_THAT(refused(small({2, 0})), HasSubstr("4 experts do not divide into part "));
  LmConfig dense = small({2, 0});
  dense.num_local_experts = 0;
  EXPECT_THAT(refused(dense), HasSubstr("has no experts; set num_local_experts"));
  const TransformerLm whole = made(small({2, 0}));
  testing::run_threads(2, [&](Communicator& comm) {
    TransformerLm lm = expert_parallel_lm(whole, comm, comm);
    NamedTensors foreign{{"model.layers.0.block_sparse_moe.experts." +
                              std::to_string(2 - 2 * comm.rank()) + ".w1.weight",
                          torch::zeros({2})}};
    const uint64_t before = comm.stats().collectives;
    TensorParts parts = lm_expert_parts(lm->config(), comm);
    EXPECT_THAT(message_of<InvalidArgument>([&] { parts.gather(foreign); }),
                HasSubstr("is another part's"));
    EXPECT_EQ(comm.stats().collectives, before);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::expert_parallel_lm_test
