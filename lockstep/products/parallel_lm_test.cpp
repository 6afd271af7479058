// The promises of ParallelLm beside equality, which the room verify tests for every product.
#include "lockstep/products/parallel_lm.h"
#include "lockstep/products/values_alike_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::parallel_lm_test {
namespace {

using ::testing::HasSubstr;

LmConfig small() {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 64;
  return config;
}

Parallelism by(const std::string& mesh, int zero = 0, int micro_batches = 0) {
  Parallelism how = parse_parallelism(mesh);
  how.zero = zero;
  how.micro_batches = micro_batches;
  return how;
}

LmRowBatch batch_of(int64_t sequences = 4) {
  const at::Tensor ids =
      (torch::arange(sequences * 6, at::kLong) * 7).pow(2).remainder(50).view({sequences, 6});
  return {ids, ids.roll(-1, 1)};
}

std::string mismatch(int ranks, const std::function<void(Communicator&)>& fn) {
  return message_of<Mismatch>([&] { testing::run_threads(ranks, fn); });
}

// An average of all gradients is as many bytes as the parameters have.
TEST(ParallelLm, AveragingIsCounted) {
  testing::run_threads(2, [](Communicator& comm) {
    ParallelLm model(small(), comm, by("data=2"), values_alike());
    EXPECT_TRUE(model.divided().averaging().empty());
    model.make_optimizer(torch::optim::AdamWOptions(1e-3));
    const auto bytes = [&] {
      uint64_t sum = 0;
      for (const DividedParameters::Averaging& group : model.divided().averaging()) {
        EXPECT_EQ(group.ranks, 2);
        sum += group.stats.of(Op::kAllReduce).bytes + group.stats.of(Op::kReduceScatter).bytes;
      }
      return static_cast<double>(sum);
    };
    const double before = bytes();
    model.step(batch_of());
    model.update({});
    const double all = 4.0 * static_cast<double>(parameter_count(small()));
    EXPECT_NEAR(bytes() - before, all, 0.05 * all);
  });
}

TEST(ParallelLm, RanksThatDifferAreToldInWhat) {
  EXPECT_THAT(mismatch(2,
                       [](Communicator& comm) {
                         LmConfig config = small();
                         config.intermediate_size += 16 * comm.rank();
                         ParallelLm(config, comm, by("tensor=2"), values_alike());
                       }),
              HasSubstr("rank 1 and rank 0 differ in configuration"));
  EXPECT_THAT(
      mismatch(2,
               [](Communicator& comm) {
                 ParallelLm(small(), comm, by("pipe=2", 0, 2 + comm.rank()), values_alike());
               }),
      HasSubstr("differ in schedule (\"1f1b, 3 micro-batches\", \"1f1b, 2 micro-batches\")"));
  EXPECT_THAT(mismatch(2,
                       [](Communicator& comm) {
                         ParallelLm(small(), comm, by("data=2", comm.rank()), values_alike());
                       }),
              HasSubstr("differ in zero (1, 0)"));
  EXPECT_THAT(
      mismatch(2,
               [](Communicator& comm) {
                 ParallelLmOptions mine = values_alike();
                 const auto values = mine.values;
                 mine.values = [values, rank = comm.rank()](const auto& name, int64_t begin,
                                                            const at::Tensor& part) {
                   values(name, begin, part);
                   part.add_(rank);
                 };
                 ParallelLm(small(), comm, by("data=2"), mine);
               }),
      HasSubstr("differ in values; give all ranks the same, or the same torch::manual_seed"));
}

TEST(ParallelLm, ABatchThatMakesNoSenseIsRefusedBeforeAnythingIsSent) {
  testing::run_threads(2, [](Communicator& comm) {
    ParallelLm model(small(), comm, by("tensor=2"), values_alike());
    const uint64_t sent = model.mesh()["tensor"].stats().collectives;
    const auto says = [&](const LmRowBatch& batch) {
      return message_of<InvalidArgument>([&] { model.step(batch); });
    };
    const LmRowBatch good = batch_of();
    EXPECT_THAT(says({good.ids.to(at::kInt), good.targets}), HasSubstr("ids must be int64"));
    EXPECT_THAT(says({good.ids, good.targets.view(-1)}), HasSubstr("of the shape of ids"));
    EXPECT_THAT(says({good.ids + 1, good.targets}), HasSubstr("outside the vocabulary of 50"));
    EXPECT_THAT(says({good.ids.view(-1), good.targets.view(-1), torch::tensor({20, 5})}),
                HasSubstr("sum to the 24 ids"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { model.update({}); }),
                HasSubstr("make_optimizer() comes before update()"));
    EXPECT_EQ(model.mesh()["tensor"].stats().collectives, sent);
  });
  testing::run_threads(2, [](Communicator& comm) {
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { ParallelLm(small(), comm, by("tensor=4"), values_alike()); }),
                HasSubstr("4"));
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
}

// One of several rows may have no targets.
TEST(ParallelLm, ABatchWithoutATargetHasALossAndGradientsOfZero) {
  for (const char* axes : {"tensor=2", "pipe=2", "context=2"})
    testing::run_threads(2, [&](Communicator& comm) {
      ParallelLm model(small(), comm, by(axes), values_alike());
      const LmRowBatch good = batch_of();
      const LmRowBatch none{good.ids, at::full_like(good.targets, -100)};
      EXPECT_EQ(model.evaluate(none), 0) << axes;
      EXPECT_EQ(model.step(none), 0) << axes;
      for (const at::Tensor& gradient : model.take_gradients()) {
        if (!gradient.defined()) continue;
        EXPECT_EQ(gradient.abs().sum().item<double>(), 0) << axes;
      }
    });
}

// Packed texts of unequal lengths, and fewer sequences than micro-batches.
TEST(ParallelLm, PackedSequencesGoIntoMicroBatches) {
  const LmRowBatch packed{torch::arange(13, at::kLong), torch::arange(13, at::kLong) + 1,
                          torch::tensor({6, 2, 5})};
  double whole = 0;
  for (const int ranks : {1, 2}) {
    testing::run_threads(ranks, [&](Communicator& comm) {
      ParallelLm model(small(), comm, by("pipe=" + std::to_string(ranks), 0, 4), values_alike());
      const double loss = model.step(packed);
      if (ranks == 1)
        whole = loss;
      else
        EXPECT_NEAR(loss, whole, 1e-5);
      EXPECT_NEAR(model.evaluate(packed), loss, 1e-5);
      EXPECT_EQ(model.pipeline().executed().size(), 3u);  // the evaluation's three forwards
    });
  }
}

// The scale of the loss is divided out again; a step that is not finite is left out on all ranks.
TEST(ParallelLm, ScaledLossesAreUnscaledOrLeftOut) {
  testing::run_threads(4, [](Communicator& comm) {
    const auto train = [&](double scale, const std::optional<double>& told) {
      ParallelLm model(small(), comm, by("data=2,tensor=2", 1), values_alike());
      model.make_optimizer(torch::optim::AdamWOptions(1e-2));
      for (int step = 0; step < 3; ++step) {
        EXPECT_LT(model.step(batch_of(), scale), 10);
        const auto result = model.update({.max_norm = 0.5, .loss_scale = told});
        EXPECT_FALSE(result.skipped);
      }
      return model.gather();
    };
    const NamedTensors plain = train(1, {}), scaled = train(1024, 1024);
    for (size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(at::allclose(plain[i].second, scaled[i].second, 1e-5, 1e-6)) << plain[i].first;
    ParallelLm model(small(), comm, by("data=2,tensor=2", 1), values_alike());
    model.make_optimizer(torch::optim::AdamWOptions(1e-2));
    const NamedTensors before = model.gather();
    model.step(batch_of(), comm.rank() < 2 ? INFINITY : 1);  // in one row alone
    EXPECT_TRUE(model.update({.loss_scale = 1}).skipped);
    const NamedTensors after = model.gather();
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(before[i].second.equal(after[i].second)) << before[i].first;
    model.step(batch_of(), comm.rank() < 2 ? INFINITY : 1);
    EXPECT_THAT(message_of<Error>([&] { model.update({.max_norm = 1}); }),
                HasSubstr("nothing was updated"));
  });
}

TEST(ParallelLm, SaysWhoHasWhat) {
  testing::run_threads(4, [](Communicator& comm) {
    ParallelLm model(small(), comm, by("pipe=2,tensor=2"), values_alike());
    const std::string text = model.str();
    EXPECT_THAT(text, HasSubstr("pipe=2, tensor=2 of 4 ranks"));
    EXPECT_THAT(text, HasSubstr("stage 0: model.embed_tokens to model.layers."));
    EXPECT_THAT(text, HasSubstr("stage 1: model.layers."));
    EXPECT_THAT(text, HasSubstr("rank " + std::to_string(comm.rank()) + " has "));
    int64_t mine = 0;
    for (const DividedParameter& part : model.parameters()) {
      mine += part.tensor.numel();
      EXPECT_EQ(part.tensor.sizes().vec(), shape_of(part.slice, part.shape)) << part.name;
    }
    EXPECT_LT(mine, parameter_count(small()) / 3);
    EXPECT_EQ(model.divided().memory().parameters, mine * 4);
    model.make_optimizer(torch::optim::AdamWOptions(1e-2));
    model.step(batch_of());
    model.update({});
    EXPECT_NEAR(static_cast<double>(model.divided().memory().state), static_cast<double>(mine) * 8,
                static_cast<double>(mine));
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { model.make_optimizer(torch::optim::AdamWOptions(1e-2)); }),
                HasSubstr("make_optimizer() is called once"));
  });
}

// A job of any shape continues from the checkpoint of 2 x 2 x 2 ranks, with the losses that these
// would have had.
TEST(ParallelLm, GoesOnWhicheverWayItIsDivided) {
  ParallelLmOptions wide = values_alike();
  wide.dtype = at::kDouble;
  for (const auto& [experts, zero_of_saved] : {std::pair{false, 1}, {false, 0}, {true, 1}}) {
    LmConfig config = small();
    config.tie_word_embeddings = !experts;
    // One head of keys, which all parts have, or two, each of which two parts share.
    const bool shares = !experts && zero_of_saved == 0;
    config.num_key_value_heads = experts ? 4 : shares ? 2 : 1;
    config.num_local_experts = experts ? 4 : 0;
    config.router_z_loss_coef = 0.01;
    config.router_aux_loss_coef = 0;
    const TestDirectory directory;
    const std::filesystem::path path = directory / "saved";
    const auto train = [&](ParallelLm& model, int steps) {
      std::vector<double> losses;
      for (int step = 0; step < steps; ++step) {
        losses.push_back(model.step(batch_of(4)));  // rows have one batch
        model.update({.max_norm = 1.0});
      }
      return losses;
    };
    std::vector<double> expected;
    testing::run_threads(8, [&](Communicator& comm) {
      const char* const mesh = experts  ? "expert=2,pipe=2,tensor=2"
                               : shares ? "pipe=2,tensor=4"
                                        : "data=2,pipe=2,tensor=2";
      ParallelLm model(config, comm, by(mesh, zero_of_saved), wide);
      model.make_optimizer(torch::optim::AdamWOptions(1e-2));
      train(model, 3);
      write_checkpoint(comm, path, model.share());
      const auto losses = train(model, 3);
      if (comm.rank() == 0) expected = losses;
    });
    const std::vector<std::tuple<std::string, int, int>> others{
        {"data=1", 1, 0},
        {"data=4", 4, experts ? 1 : 3},
        {"pipe=4,tensor=2", 8, 0},
        {"data=2,pipe=2,tensor=2", 8, 1},
        {experts ? "expert=4" : "tensor=4", 4, 0},
        {"context=2,pipe=2", 4, 1}};
    for (const auto& [mesh, ranks, zero] : others) {
      testing::run_threads(ranks, [&, mesh = mesh, zero = zero](Communicator& comm) {
        ParallelLmOptions elsewhere = wide;  // other values than the saved ones
        elsewhere.values = [&](const std::string& name, int64_t begin, const at::Tensor& part) {
          wide.values(name, begin, part);
          part.mul_(1.5);
        };
        ParallelLm model(config, comm, by(mesh, zero), elsewhere);
        model.make_optimizer(torch::optim::AdamWOptions(1e-3));
        model.load(read_checkpoint(path, CheckpointParts::kAll, ModelForm::kSlices), "saved");
        model.divided().set_learning_rate(1e-2);
        const auto losses = train(model, 3);
        for (size_t i = 0; i < losses.size(); ++i)
          EXPECT_NEAR(losses[i], expected[i], 1e-10) << mesh << " " << i;
      });
    }
  }
}

// Another model of the same ranks takes back what one has written, and does what that one did.
TEST(ParallelLm, GoesOnFromTheSharesOfItsRanks) {
  LmConfig config = small();
  config.hidden_dropout = 0.1;
  ParallelLmOptions without = values_alike();
  without.values = [](const std::string&, int64_t, const at::Tensor&) {};
  const auto train = [](ParallelLm& model, int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      model.step(batch_of());
      model.update({.max_norm = 0.5});
    }
  };
  for (const auto& [mesh, zero] :
       std::vector<std::pair<std::string, int>>{{"data=2,tensor=2", 0},
                                                {"data=2,tensor=2", 3},
                                                {"pipe=2,data=2", 1},
                                                {"context=2,data=2", 2}}) {
    const std::string who = mesh + " zero " + std::to_string(zero);
    testing::run_threads(4, [&, zero = zero](Communicator& comm) {
      for (const int64_t before : {0, 2}) {
        ParallelLm model(config, comm, by(mesh, zero), values_alike());
        // Without weights of attention, which stay as they are.
        const OptimizerGroup group{
            [&] {
              std::vector<std::string> names;
              for (const auto& [name, shape] : model.divided().whole_shapes())
                if (name.find("self_attn") == std::string::npos) names.push_back(name);
              return names;
            }(),
            std::make_shared<torch::optim::AdamWOptions>(1e-2)};
        model.divided().make_optimizer(torch::optim::AdamWOptions(1e-2), {group});
        train(model, before);
        const at::Tensor kept = model.share_in({}).clone();
        train(model, 2);
        const at::Tensor expected = model.share_in({}).clone();
        EXPECT_FALSE(at::equal(kept, expected)) << who;

        ParallelLm again(config, comm, by(mesh, zero), without);
        again.divided().make_optimizer(torch::optim::AdamWOptions(1e-2), {group});
        again.restore_share(kept);
        EXPECT_EQ(again.steps(), static_cast<uint64_t>(before)) << who;
        train(again, 2);
        EXPECT_TRUE(at::equal(again.share_in(at::empty({kept.numel() * 2}, at::kByte)), expected))
            << who;

        const auto refuses = [&](const at::Tensor& share, const char* why) {
          EXPECT_THAT(message_of<DataError>([&] { again.restore_share(share); }), HasSubstr(why))
              << who;
        };
        refuses(kept.narrow(0, 0, 4), "is too short");
        refuses(kept.narrow(0, 0, kept.numel() - 4), "it is of another model, mesh or optimizer");
        refuses(kept.view(at::kLong), "uint8, 1-D");
      }
    });
  }
}

// Texts whose rows do not divide are padded without a change of numbers; rows with different
// batches get an error.
TEST(ParallelLm, AnyLengthsDivide) {
  for (const auto& lengths : std::vector<std::vector<int64_t>>{{5, 6}, {1, 2}, {9, 8, 4}, {3}}) {
    int64_t all = 0;
    for (const int64_t length : lengths) all += length;
    const LmRowBatch packed{torch::arange(all, at::kLong), torch::arange(all, at::kLong) + 1,
                            torch::tensor(lengths)};
    double whole = 0;
    at::Tensor losses;
    for (const char* mesh : {"data=1", "context=2,tensor=2", "tensor=4", "context=4"}) {
      Parallelism how = by(mesh);
      how.divides_rows = true;
      testing::run_threads(mesh == std::string("data=1") ? 1 : 4, [&](Communicator& comm) {
        ParallelLm model(small(), comm, how, values_alike());
        const double loss = model.step(packed);
        const TokenScores scores = model.scores(packed);
        if (comm.size() == 1) {
          whole = loss;
          losses = scores.losses;
          return;
        }
        EXPECT_NEAR(loss, whole, 1e-5) << mesh;
        EXPECT_TRUE(at::allclose(scores.losses, losses, 1e-4, 1e-5)) << mesh;
      });
    }
  }
  EXPECT_THAT(mismatch(2,
                       [](Communicator& comm) {
                         ParallelLm model(small(), comm, by("tensor=2"), values_alike());
                         const LmRowBatch batch = batch_of();
                         model.step({batch.ids, batch.targets.add(comm.rank()).remainder(50)});
                       }),
              HasSubstr("row: ids"));
}

// Routers ignore padding: losses, gradients, capacities and statistics are those of the batch
// alone.
TEST(ParallelLm, RoutersDoNotCountWhatFillsRowsUp) {
  ParallelLmOptions wide = values_alike();
  wide.dtype = at::kDouble;
  const LmRowBatch packed{torch::arange(14, at::kLong) * 3 % 50, torch::arange(14, at::kLong) + 1,
                          torch::tensor({5, 6, 3})};
  for (const bool limited : {false, true}) {
    LmConfig config = small();
    config.num_local_experts = 4;
    config.router_aux_loss_coef = 0.5;
    config.router_aux_loss_by_layer = true;
    config.router_z_loss_coef = 0.1;
    config.capacity_factor = limited ? 0.7 : 0;  // counts a rank's own tokens, so context differs
    NamedTensors expected;
    std::vector<RouterStatistics> figures;
    for (const char* mesh :
         {"data=1", "tensor=4", "pipe=2,tensor=2", "context=2,tensor=2", "context=4"}) {
      if (limited && std::string(mesh).starts_with("context")) continue;
      Parallelism how = by(mesh, 0, 1);
      how.divides_rows = how.size_of("tensor") > 1;
      testing::run_threads(mesh == std::string("data=1") ? 1 : 4, [&](Communicator& comm) {
        ParallelLm model(config, comm, how, wide);
        model.make_optimizer(torch::optim::SGDOptions(0.5));
        for (int step = 0; step < 2; ++step) {
          model.step(packed);
          model.update({});
        }
        const NamedTensors whole = model.gather();
        const auto routers = model.module()->routers();
        if (comm.size() == 1) {
          expected = whole;
          figures = routers;
          for (const RouterStatistics& layer : figures)
            EXPECT_EQ(std::accumulate(layer.choices.begin(), layer.choices.end(), int64_t{0}), 28);
          EXPECT_EQ(figures[0].left_out > 0, limited);
          return;
        }
        for (const RouterStatistics& layer : routers) {
          EXPECT_EQ(layer.choices, figures[static_cast<size_t>(layer.layer)].choices) << mesh;
          EXPECT_EQ(layer.left_out, figures[static_cast<size_t>(layer.layer)].left_out) << mesh;
        }
        for (size_t i = 0; i < whole.size(); ++i)
          EXPECT_TRUE(at::allclose(whole[i].second, expected[i].second, 1e-9, 1e-10))
              << mesh << " " << whole[i].first;
      });
    }
  }
}

// This holds also where a rank has nothing else, and for the fused nodes.
TEST(ParallelLm, RanksMayHaveNothingButPadding) {
  LmConfig config = small();
  config.num_local_experts = 4;
  config.router_aux_loss_coef = 0.5;
  config.router_aux_loss_by_layer = true;
  const LmRowBatch few{torch::arange(2, at::kLong), torch::arange(2, at::kLong) + 1};
  NamedTensors expected;
  for (const int ranks : {1, 4}) {
    testing::run_threads(ranks, [&](Communicator& comm) {
      ParallelLm model(config, comm, by("context=" + std::to_string(ranks), 0, 1), values_alike());
      model.make_optimizer(torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 2; ++step) {
        model.step({few.ids, few.targets, torch::tensor({2})});
        model.update({});
      }
      for (const RouterStatistics& layer : model.module()->routers())
        EXPECT_EQ(std::accumulate(layer.choices.begin(), layer.choices.end(), int64_t{0}), 4);
      const NamedTensors whole = model.gather();
      if (ranks == 1) expected = whole;
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(at::allclose(whole[i].second, expected[i].second, 1e-4, 1e-5))
            << whole[i].first;
    });
  }
}

// If one row has fewer sequences than the other, both run equally many micro-batches.
TEST(ParallelLm, RowsWithExpertsRunAsManyMicroBatches) {
  LmConfig config = small();
  config.num_local_experts = 4;
  config.router_aux_loss_coef = 0.01;
  testing::run_threads(2, [&](Communicator& comm) {
    ParallelLm model(config, comm, by("expert=2", 0, 4), values_alike());
    EXPECT_GT(model.step(batch_of(comm.rank() == 0 ? 3 : 2)), 0);
    EXPECT_GT(model.evaluate(batch_of(2)), 0);
  });
}

TEST(ParallelLm, DropoutIsOneMaskOnAllPartsOfARow) {
  LmConfig config = small();
  config.hidden_dropout = 0.3;
  std::map<int, double> losses;
  for (const int ranks : {1, 4}) {
    testing::run_threads(ranks, [&](Communicator& comm) {
      ParallelLm model(config, comm, ranks == 1 ? by("data=1", 0, 2) : by("pipe=2,tensor=2", 0, 2),
                       values_alike());
      const double first = model.step(batch_of()), second = model.step(batch_of());
      EXPECT_NE(first, second);
      EXPECT_NE(model.evaluate(batch_of()), first);
      if (comm.rank() == 0) losses[ranks] = second;
    });
  }
  EXPECT_NEAR(losses[1], losses[4], 1e-5);
}

}  // namespace
}  // namespace lockstep::inline v0::parallel_lm_test
