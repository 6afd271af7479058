// The differences of ZeRO's stages: memory, traffic, and the parameters' location.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/zero/internal/host_copy.h"
#include "lockstep/parallel/zero/test_net.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::zero_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

// Layers of equal size, as in a transformer.
NamedTensors layers(int count, int64_t numel) {
  NamedTensors result;
  for (int i = 0; i < count; ++i)
    result.emplace_back("layer" + std::to_string(i), torch::full({numel}, 0.5).requires_grad_());
  return result;
}

at::Tensor loss_over(const NamedTensors& parameters, double factor) {
  at::Tensor loss = torch::zeros({});
  for (const auto& entry : parameters) loss = loss + (entry.second * factor).square().sum();
  return loss;
}

TEST(HostCopy, HostsAreCountedInTheirOrder) {
  using internal::ranks_by_host;
  EXPECT_THAT(*ranks_by_host(std::vector<int>{4, 4, 2, 2, 2, 7}), ElementsAre(2, 3, 1));
  EXPECT_THAT(*ranks_by_host(std::vector<int>{0}), ElementsAre(1));
  EXPECT_EQ(ranks_by_host(std::vector<int>{0, 1, 0}), std::nullopt);
}

// Rajbhandari et al., figure 1, with float32 throughout and one copy of the parameters per host.
TEST(ZeroStages, MemoryIsThatOfTheFormulas) {
  constexpr int kLayers = 12;
  constexpr int64_t kNumel = 50'000;
  constexpr double kPsi = kLayers * kNumel * 4.0;  // in bytes
  for (const int ranks : {2, 4, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool one_copy : {false, true}) {
        if (stage == 3 && !one_copy) continue;
        testing::run_threads(ranks, [&](Communicator& comm) {
          const NamedTensors parameters = layers(kLayers, kNumel);
          ZeroOptimizer optimizer(comm, parameters, AdamWOptions(1e-3),
                                  {.stage = stage,
                                   .one_copy = one_copy,
                                   .bucket_sizes = {.first = 200'000, .rest = 200'000}});
          loss_over(parameters, 1).backward();
          optimizer.step();
          const ZeroMemory memory = optimizer.memory();
          EXPECT_EQ(memory, optimizer.planned_memory());
          const auto divided = [&](bool by_ranks) { return by_ranks ? kPsi / ranks : kPsi; };
          const auto near = [](int64_t bytes, double expected) {
            EXPECT_NEAR(static_cast<double>(bytes), expected, 0.02 * expected);
          };
          near(memory.parameters, divided(stage > 0 && one_copy));
          near(memory.gradients, divided(stage > 1));
          near(memory.state, 2 * divided(stage > 0));
          near(memory.buffers, stage > 1 ? 3 * 200'000.0 : 0);
          // Nothing else is kept after a step.
          for (const auto& entry : parameters) EXPECT_FALSE(entry.second.grad().defined());
        });
      }
    }
  }
}

// Seven billion parameters under AdamW, of which only the shapes exist.
TEST(ZeroStages, MemoryIsPlannedWithoutAny) {
  std::vector<at::Tensor> parameters;
  for (int layer = 0; layer < 32; ++layer) {
    for (int i = 0; i < 4; ++i) parameters.push_back(torch::empty({4096, 4096}, at::kMeta));
    for (int i = 0; i < 3; ++i) parameters.push_back(torch::empty({4096, 11008}, at::kMeta));
  }
  double psi = 0;
  for (const at::Tensor& one : parameters) psi += 4.0 * static_cast<double>(one.numel());
  EXPECT_GT(psi, 4 * 6.4e9);
  for (const int ranks : {2, 8, 64}) {
    const ZeroMemory memory = plan_memory({parameters}, AdamWOptions(1e-3), {.stage = 3},
                                          {.all = ranks, .sharing = ranks});
    const double part = psi / ranks;
    EXPECT_NEAR(static_cast<double>(memory.parameters), part, 1e-3 * part);
    EXPECT_NEAR(static_cast<double>(memory.gradients), part, 1e-3 * part);
    EXPECT_NEAR(static_cast<double>(memory.state), 2 * part, 2e-3 * part);
    EXPECT_LT(memory.buffers, 3 * (4096 * 11008 * 4 + (int64_t{25} << 20)));
  }
  // Hosts of eight ranks have a whole copy each.
  const ZeroMemory hosts =
      plan_memory({parameters}, AdamWOptions(1e-3), {.stage = 3}, {.all = 64, .sharing = 8});
  EXPECT_NEAR(static_cast<double>(hosts.parameters), psi / 8, 1e-3 * psi / 8);
  EXPECT_NEAR(static_cast<double>(hosts.gradients), psi / 64, 1e-3 * psi / 64);
}

// Counts payload; the few bytes by which ranks agree on a step are additional.
TEST(ZeroStages, OneCopyAHostSpendsNoBytesOnParameters) {
  constexpr int64_t kNumel = 40'000;
  constexpr double kPsi = 4 * kNumel * 4.0;
  for (const int stage : {1, 2, 3}) {
    for (const bool one_copy : {false, true}) {
      if (stage == 3 && !one_copy) continue;
      testing::run_threads(4, [&](Communicator& comm) {
        const NamedTensors parameters = layers(4, kNumel);
        ZeroOptimizer optimizer(comm, parameters, SGDOptions(0.1),
                                {.stage = stage, .one_copy = one_copy});
        const CommunicatorStats before = optimizer.stats();
        loss_over(parameters, 1).backward();
        optimizer.step();
        const auto bytes = [&](Op op) {
          return static_cast<double>(optimizer.stats().of(op).bytes - before.of(op).bytes);
        };
        EXPECT_NEAR(bytes(Op::kReduceScatter), kPsi, 0.02 * kPsi);
        EXPECT_NEAR(bytes(Op::kAllGather), one_copy ? 0 : kPsi, 0.02 * kPsi);
        EXPECT_EQ(bytes(Op::kAllReduce), 0);
      });
    }
  }
}

// No layer is gathered, so ranks do not depend on each other's order of layers.
TEST(ZeroStages, RanksMayTakeDifferentWays) {
  for (const int stage : {1, 2, 3}) {
    testing::run_threads(3, [stage](Communicator& comm) {
      const NamedTensors parameters = layers(6, 1000);
      ZeroOptimizer optimizer(comm, parameters, SGDOptions(1),
                              {.stage = stage, .bucket_sizes = {.first = 1000, .rest = 1000}});
      // Rank r uses layers r and r + 3, and one of them twice.
      const auto& first = parameters[static_cast<size_t>(comm.rank())].second;
      const auto& second = parameters[static_cast<size_t>(comm.rank()) + 3].second;
      (first.sum() + first.sum() + 3 * second.sum()).backward();
      optimizer.step();
      for (size_t i = 0; i < parameters.size(); ++i)
        EXPECT_TRUE(parameters[i].second.detach().allclose(
            torch::full({1000}, i < 3 ? 0.5 - 2.0 / 3 : 0.5 - 1.0)))
            << stage << " " << i;
    });
  }
}

TEST(ZeroStages, ARankWritesForAllRanksOfItsHost) {
  testing::run_threads(3, [](Communicator& comm) {
    const NamedTensors parameters = layers(2, 100);
    const ZeroOptimizer optimizer(comm, parameters, SGDOptions(1), {.stage = 3});
    comm.barrier();
    if (comm.rank() == 1) {
      const at::NoGradGuard no_grad;
      parameters[1].second.fill_(7);
    }
    comm.barrier();
    EXPECT_TRUE(parameters[1].second.detach().eq(7).all().item<bool>());
    EXPECT_TRUE(parameters[0].second.detach().eq(0.5).all().item<bool>());
    comm.barrier();
  });
}

// From the second step on backward writes gradients directly where they are reduced, except those
// of the layer that tells the optimizer that a backward has begun.
TEST(ZeroStages, GradientsAreBornInTheirPlaces) {
  for (const int stage : {0, 1, 2, 3}) {
    testing::run_threads(2, [stage](Communicator& comm) {
      at::set_num_threads(1);
      torch::nn::Sequential model(torch::nn::Linear(50, 60), torch::nn::Linear(60, 60),
                                  torch::nn::Linear(60, 3));
      ZeroOptimizer optimizer(comm, to_named_tensors(model->named_parameters()), AdamWOptions(1e-2),
                              {.stage = stage, .bucket_sizes = {.first = 8000, .rest = 8000}});
      ASSERT_GE(optimizer.bucket_count(), 2U);
      const at::Tensor input = torch::ones({8, 50});
      std::vector<int64_t> copied;
      for (int step = 0; step < 4; ++step) {
        model->forward(input).square().sum().backward();
        optimizer.step();
        copied.push_back(optimizer.times().copied_bytes);
      }
      EXPECT_GT(copied[0], 0);
      EXPECT_EQ(copied[3] - copied[0], 3 * 4 * (60 * 3 + 3)) << stage;
    });
  }
}

// A kept gradient keeps its values, though its place is soon used by another gradient.
TEST(ZeroStages, AGradientThatSomebodyKeepsIsLeftAlone) {
  for (const int stage : {1, 3}) {
    testing::run_threads(2, [stage](Communicator& comm) {
      // Each in its own bucket, in turns of four buffers.
      const NamedTensors parameters = layers(12, 1000);
      ZeroOptimizer optimizer(comm, parameters, SGDOptions(0),
                              {.stage = stage, .bucket_sizes = {.first = 1000, .rest = 1000}});
      std::vector<at::Tensor> kept(parameters.size());
      for (size_t i = 0; i < parameters.size(); ++i)
        parameters[i].second.register_hook([&kept, i](const at::Tensor& g) { kept[i] = g; });
      for (int step = 0; step < 4; ++step) {
        // Another order of layers in each step: the learnt placement does not apply.
        at::Tensor loss = torch::zeros({});
        for (size_t i = 0; i < parameters.size(); ++i) {
          const at::Tensor& p = parameters[(i * 5 + static_cast<size_t>(step)) % 12].second;
          loss = loss + (p * p * static_cast<double>(i + 1)).sum();
        }
        std::vector<at::Tensor> before = kept;
        std::vector<at::Tensor> values;
        for (const at::Tensor& one : before) values.push_back(one.defined() ? one.clone() : one);
        loss.backward();
        optimizer.step();
        for (size_t i = 0; i < parameters.size(); ++i) {
          const size_t at = (i * 5 + static_cast<size_t>(step)) % 12;
          EXPECT_TRUE(kept[at].eq(static_cast<double>(i + 1)).all().item<bool>())
              << "stage " << stage << ", step " << step << ", layer " << at;
          EXPECT_TRUE(!before[at].defined() || before[at].equal(values[at]));
        }
      }
    });
  }
}

// The parameters outlive the optimizer, on every rank.
TEST(ZeroStages, ParametersStayWhenTheOptimizerGoes) {
  testing::run_threads(2, [](Communicator& comm) {
    const NamedTensors parameters = layers(2, 100);
    {
      ZeroOptimizer optimizer(comm, parameters, SGDOptions(0.25), {.stage = 3});
      loss_over(parameters, 1).backward();
      optimizer.step();
    }
    EXPECT_TRUE(parameters[0].second.detach().eq(0.25).all().item<bool>());
    loss_over(parameters, 1).backward();
    EXPECT_TRUE(parameters[0].second.grad().eq(0.5).all().item<bool>());
  });
}

TEST(ZeroStages, EveryBackwardIsReducedWhereGradientsAccumulateInParts) {
  TestNet one;
  optim::FusedSGD reference(trained(one), SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    reference.zero_grad();
    for (int micro = 0; micro < 4; ++micro) (loss_of(one, 4 * step + micro) / 4).backward();
    reference.step();
  }
  for (const int ranks : {1, 2, 3}) {
    for (const int stage : {2, 3}) {
      for (const int quiet : {0, 1, 4}) {  // this many of four run under no_sync()
        testing::run_threads(ranks, [&](Communicator& comm) {
          TestNet net;
          const NamedTensors parameters = named_trained(net);
          ZeroOptimizer optimizer(
              comm, parameters, SGDOptions(0.1).momentum(0.9),
              {.stage = stage, .accumulate = true, .bucket_sizes = {.first = 200, .rest = 300}});
          for (int step = 0; step < 3; ++step) {
            for (int micro = 0; micro < 4; ++micro) {
              std::optional<ZeroOptimizer::NoSync> guard;
              if (micro < quiet) guard.emplace(optimizer.no_sync());
              const uint64_t calls = optimizer.stats().of(Op::kReduceScatter).calls;
              (loss_of(net, 4 * step + micro, comm.rank(), ranks) / 4).backward();
              if (ranks == 1) continue;
              EXPECT_EQ(optimizer.stats().of(Op::kReduceScatter).calls - calls,
                        micro < quiet ? 0 : optimizer.bucket_count());
              EXPECT_EQ(parameters[0].second.grad().defined(), micro < quiet);
            }
            optimizer.step();
          }
          EXPECT_LE(distance(trained(net), trained(one)), 1e-12)
              << ranks << " ranks, stage " << stage << ", quiet " << quiet;
        });
      }
    }
  }
}

// Under Muon each matrix belongs to one rank: N ranks equal one process, in every stage.
TEST(ZeroStages, MuonsMatricesAreWhole) {
  const auto make = [] {
    std::vector<std::vector<int64_t>> shapes = {{8, 6}, {6, 6}, {20, 6}, {6, 20}, {3, 6}};
    NamedTensors result;
    for (const auto& shape : shapes) {
      const int64_t numel = shape[0] * shape[1];
      result.emplace_back(
          "w" + std::to_string(result.size()),
          torch::arange(numel, at::kDouble).mul(0.3).sin().view(shape).requires_grad_());
    }
    return result;
  };
  const auto loss_of_rows = [](const NamedTensors& w, int step, int part, int parts) {
    const at::Tensor x = torch::arange(12 * 6, at::kDouble)
                             .add(step * 7)
                             .cos()
                             .view({12, 6})
                             .slice(0, part * 12 / parts, (part + 1) * 12 / parts);
    at::Tensor h = x.mm(w[1].second).tanh();
    h = h.mm(w[2].second.t()).tanh().mm(w[3].second.t());
    return (h.mm(w[0].second.t()).square().mean() + h.mm(w[4].second.t()).sin().mean());
  };
  const optim::MuonOptions options = optim::MuonOptions(0.05).dtype(at::kDouble);
  const NamedTensors one = make();
  std::vector<at::Tensor> alone;
  for (const auto& entry : one) alone.push_back(entry.second);
  optim::Muon reference(alone, options);
  for (int step = 0; step < 10; ++step) {
    reference.zero_grad();
    loss_of_rows(one, step, 0, 1).backward();
    reference.step({.max_norm = 0.5});
  }
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      Safetensors state;
      testing::run_threads(ranks, [&](Communicator& comm) {
        const NamedTensors mine = make();
        ZeroOptimizer optimizer(
            comm, mine, options,
            {.stage = stage, .one_copy = stage != 2, .bucket_sizes = {.first = 64, .rest = 64}});
        for (int step = 0; step < 10; ++step) {
          loss_of_rows(mine, step, comm.rank(), ranks).backward();
          optimizer.step({.max_norm = 0.5});
        }
        std::vector<at::Tensor> found;
        for (const auto& entry : mine) found.push_back(entry.second);
        EXPECT_LE(distance(found, alone), 1e-9) << ranks << " ranks, stage " << stage;
        const Safetensors whole = optimizer.state_on_root();
        if (comm.rank() == 0) state = whole;
      });
      // The state equals that of a Muon of one process.
      optim::Muon other(alone, options);
      set_optimizer_state(other, state, "test");
    }
  }
  testing::run_threads(2, [&](Communicator& comm) {
    EXPECT_THAT(message_of<InvalidArgument>(
                    [&] { ZeroOptimizer(comm, layers(1, 10), optim::MuonOptions()); }),
                HasSubstr("'layer0' has 1 dimension(s)"));
  });
}

// The same without overlap: a backward's gradients are freed when it ends.
TEST(ZeroStages, GradientsAccumulateInPartsWithoutOverlap) {
  testing::run_threads(2, [](Communicator& comm) {
    const NamedTensors parameters = layers(4, 100);
    ZeroOptimizer optimizer(comm, parameters, SGDOptions(0.125),
                            {.stage = 3, .accumulate = true, .overlap = false});
    for (int micro = 0; micro < 3; ++micro) {
      loss_over(parameters, 1).backward();
      EXPECT_FALSE(parameters[0].second.grad().defined());
    }
    optimizer.step();
    EXPECT_TRUE(parameters[0].second.detach().eq(0.5 - 0.125 * 3).all().item<bool>());
  });
}

TEST(ZeroStages, OptionsThatContradictEachOtherAreNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto refusal = [&](const ZeroOptions& options) {
      return message_of<InvalidArgument>(
          [&] { ZeroOptimizer(comm, layers(1, 10), SGDOptions(1), options); });
    };
    EXPECT_THAT(refusal({.stage = 4}), HasSubstr("must be 0, 1, 2 or 3"));
    EXPECT_THAT(refusal({.stage = -1}), HasSubstr("stage is -1"));
    EXPECT_THAT(refusal({.stage = 1, .accumulate = true}), HasSubstr("take no_sync()"));
    EXPECT_THAT(refusal({.stage = 3, .one_copy = false}), HasSubstr("take stage 2"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::zero_test
