// ZeroOptions::master_weights: 16-bit parameters, whose masters, state and averages are float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/muon.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/zero/engine.h"
#include "lockstep/parallel/zero/layer_net.h"
#include "lockstep/parallel/zero/test_net.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::zero_test {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr double kFine = 1.0 / 1024;  // beside 1, bfloat16 has no bit for it

NamedTensors short_ones(at::ScalarType dtype = at::kBFloat16) {
  return {{"a", torch::ones({37}, dtype).requires_grad_()},
          {"b", torch::full({20, 30}, 0.5, dtype).requires_grad_()},
          {"c", torch::ones({3}).requires_grad_()}};  // float32: it has no master
}

// Gradients that are multiples of 1/8 below 8 for any number of ranks, so that sums and averages
// are exact.
at::Tensor gradient_of(const at::Tensor& parameter, size_t index, int step) {
  return torch::arange(parameter.numel())
      .add(static_cast<int64_t>(index) + 3 * step)
      .remainder(15)
      .sub(7)
      .div(8)
      .view(parameter.sizes())
      .to(parameter.scalar_type());
}

// The ranks' losses differ by multiples of 1/4, which add up to 0.
at::Tensor exact_loss(const NamedTensors& parameters, int step, int rank, int ranks) {
  at::Tensor loss = torch::zeros({});
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& p = parameters[i].second;
    const at::Tensor by = gradient_of(p, i, step) + 0.5 * (2 * rank - ranks + 1);
    loss = loss + (p * by).sum().to(at::kFloat);
  }
  return loss;
}

// The same by hand: float32 values, and the parameters that they round to.
template <typename Fused, typename Options>
std::vector<at::Tensor> masters_by_hand(const Options& options, int steps) {
  const NamedTensors parameters = short_ones();
  std::vector<at::Tensor> masters;
  for (const auto& entry : parameters)
    masters.push_back(entry.second.detach().to(at::kFloat).clone().requires_grad_());
  Fused optimizer(masters, options);
  for (int step = 0; step < steps; ++step) {
    for (size_t i = 0; i < masters.size(); ++i)
      masters[i].mutable_grad() = gradient_of(parameters[i].second, i, step).to(at::kFloat);
    optimizer.step();
  }
  return masters;
}

at::Tensor master_in(const Safetensors& state, size_t index) {
  const at::Tensor* found = state.find(std::to_string(index) + ".master_weight");
  return found == nullptr ? at::Tensor() : *found;
}

struct MasterWay {
  int ranks, stage;
  bool one_copy;
  bool reduce_float32 = false;
};

std::vector<MasterWay> master_ways() {
  std::vector<MasterWay> ways;
  for (const int ranks : {1, 2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool wide : {false, true}) {
        ways.push_back({ranks, stage, true, wide});
        if (stage == 1 || stage == 2) ways.push_back({ranks, stage, false, wide});
      }
    }
  }
  return ways;
}

template <typename Options>
void expect_masters(const Options& options, const std::vector<at::Tensor>& by_hand, int steps,
                    double tolerance) {
  for (const MasterWay& way : master_ways()) {
    testing::run_threads(way.ranks, [&](Communicator& comm) {
      const NamedTensors parameters = short_ones();
      ZeroOptimizer optimizer(comm, parameters, options,
                              {.stage = way.stage,
                               .one_copy = way.one_copy,
                               .bucket_sizes = {.first = 64, .rest = 64},
                               .master_weights = true,
                               .reduce_float32 = way.reduce_float32});
      for (int step = 0; step < steps; ++step) {
        exact_loss(parameters, step, comm.rank(), way.ranks).backward();
        optimizer.step();
      }
      EXPECT_EQ(optimizer.memory(), optimizer.planned_memory());
      const Safetensors state = optimizer.state_on_root();
      if (comm.rank() == 0) {
        EXPECT_FALSE(master_in(state, 2).defined());
        for (const size_t i : {0U, 1U}) {
          const at::Tensor master = master_in(state, i);
          EXPECT_LE(distance({master}, {by_hand[i]}), tolerance)
              << way.ranks << " ranks, stage " << way.stage;
          EXPECT_TRUE(master.to(at::kBFloat16).equal(parameters[i].second.detach()));
        }
        EXPECT_LE(distance({parameters[2].second}, {by_hand[2]}), tolerance);
      }
      comm.barrier();
      EXPECT_EQ(parameters[0].second.scalar_type(), at::kBFloat16);
    });
  }
}

// Steps of a 1024th of an 8th: float32 represents them exactly, and bfloat16 not at all.
TEST(ZeroMasters, SgdIsThatOfFloat32RoundedOnce) {
  const SGDOptions options = SGDOptions(kFine).momentum(0.5);
  const auto by_hand = masters_by_hand<optim::FusedSGD>(options, 6);
  EXPECT_FALSE(by_hand[0].detach().equal(by_hand[0].detach().to(at::kBFloat16).to(at::kFloat)));
  expect_masters(options, by_hand, 6, 0);
}

TEST(ZeroMasters, AdamWIsThatOfFloat32RoundedOnce) {
  const AdamWOptions options = AdamWOptions(1e-3).weight_decay(0.1);
  expect_masters(options, masters_by_hand<optim::FusedAdamW>(options, 6), 6, 1e-6);
}

// The average of 1 and 1 + 1/128 has one bit more than bfloat16.
TEST(ZeroMasters, AveragesHaveSixteenBitsOrThirtyTwo) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool wide : {false, true}) {
      testing::run_threads(2, [&](Communicator& comm) {
        const NamedTensors parameters = {{"a", torch::ones({100}, at::kBFloat16).requires_grad_()}};
        ZeroOptimizer optimizer(comm, parameters, SGDOptions(1),
                                {.stage = stage, .master_weights = true, .reduce_float32 = wide});
        (parameters[0].second * (comm.rank() == 0 ? 1.0 : 1.0078125)).sum().backward();
        optimizer.step();
        const Safetensors state = optimizer.state_on_root();
        if (comm.rank() != 0) return;
        EXPECT_EQ(master_in(state, 0)[0].item<float>(), wide ? -1.0F / 256 : 0.0F) << stage;
      });
    }
  }
}

// A half and a 512th are accumulated separately, because bfloat16 could not add them.
TEST(ZeroMasters, BackwardsAddUpInFloat32) {
  testing::run_threads(2, [](Communicator& comm) {
    const NamedTensors parameters = {{"a", torch::ones({100}, at::kBFloat16).requires_grad_()}};
    ZeroOptimizer optimizer(comm, parameters, SGDOptions(1),
                            {.stage = 2, .accumulate = true, .master_weights = true});
    for (const double by : {0.5, 1.0 / 512}) (parameters[0].second * by).sum().backward();
    optimizer.step();
    const Safetensors state = optimizer.state_on_root();
    if (comm.rank() != 0) return;
    EXPECT_EQ(master_in(state, 0)[7].item<float>(), 0.5F - 1.0F / 512);
  });
}

// In bytes per element, on four ranks; and the bytes sent per step.
TEST(ZeroMasters, ParametersAndWhatIsSentAreHalf) {
  constexpr int64_t kNumel = 64'000;
  for (const bool wide : {false, true}) {
    for (const int stage : {1, 2}) {
      testing::run_threads(4, [&](Communicator& comm) {
        const NamedTensors parameters = {
            {"a", torch::ones({kNumel}, at::kBFloat16).requires_grad_()}};
        ZeroOptimizer optimizer(
            comm, parameters, AdamWOptions(1e-3),
            {.stage = stage, .one_copy = false, .master_weights = true, .reduce_float32 = wide});
        const CommunicatorStats before = optimizer.stats();
        parameters[0].second.sum().backward();
        optimizer.step();
        const auto bytes = [&](Op op) {
          return static_cast<double>(optimizer.stats().of(op).bytes - before.of(op).bytes) / kNumel;
        };
        EXPECT_NEAR(bytes(Op::kReduceScatter), wide ? 4 : 2, 0.02);
        EXPECT_NEAR(bytes(Op::kAllGather), 2, 0.02);
        const ZeroMemory memory = optimizer.memory();
        EXPECT_EQ(memory, optimizer.planned_memory());
        EXPECT_EQ(memory.parameters, 2 * kNumel);
        EXPECT_EQ(memory.masters, kNumel);
        EXPECT_EQ(memory.state, 2 * kNumel);
        EXPECT_EQ(memory.gradients, stage == 1 ? 3 * kNumel : kNumel);
        EXPECT_EQ(memory.buffers, stage == 1 ? 0 : 2 * kNumel);
      });
    }
  }
}

// All ranks' parts of a state, as a checkpoint has them.
class Together {
 public:
  void add(const SlicedTensors& own) {
    const std::lock_guard lock(mutex_);
    if (!own.metadata.empty()) state_.metadata = own.metadata;
    for (const auto& [name, tensor] : own.tensors) {
      SlicedTensor& whole = state_.tensors[name];
      std::vector<TensorSlice> slices = whole.slices;
      for (const TensorSlice& slice : tensor.slices)
        slices.push_back({slice.begin, slice.values.clone()});
      std::sort(slices.begin(), slices.end(),
                [](const TensorSlice& a, const TensorSlice& b) { return a.begin < b.begin; });
      whole = tensor;
      whole.slices = std::move(slices);
    }
  }
  const SlicedTensors& state() const { return state_; }

 private:
  std::mutex mutex_;
  SlicedTensors state_;
};

TEST(ZeroMasters, ResumedStepsHaveTheSameBits) {
  const AdamWOptions options = AdamWOptions(1e-3).weight_decay(0.1);
  Together together;
  std::vector<at::Tensor> between, after;
  const auto take = [](ZeroOptimizer& optimizer, const NamedTensors& parameters, int first,
                       Communicator& comm) {
    for (int step = first; step < first + 3; ++step) {
      exact_loss(parameters, step, comm.rank(), comm.size()).backward();
      optimizer.step({.max_norm = 2.0});
    }
  };
  const auto values = [](const NamedTensors& parameters, const Safetensors& state) {
    std::vector<at::Tensor> result;
    for (const auto& entry : parameters) result.push_back(entry.second.detach().clone());
    for (const size_t i : {0U, 1U})
      if (master_in(state, i).defined()) result.push_back(master_in(state, i).clone());
    return result;
  };
  const ZeroOptions how{.stage = 2, .master_weights = true};
  testing::run_threads(2, [&](Communicator& comm) {
    const NamedTensors parameters = short_ones();
    ZeroOptimizer optimizer(comm, parameters, options, how);
    take(optimizer, parameters, 0, comm);
    together.add(optimizer.own_state());
    if (comm.rank() == 0) between = values(parameters, {});
    comm.barrier();
    take(optimizer, parameters, 3, comm);
    const Safetensors state = optimizer.state_on_root();
    if (comm.rank() == 0) after = values(parameters, state);
  });
  ASSERT_EQ(after.size(), 5U);
  for (const int ranks : {2, 4}) {
    testing::run_threads(ranks, [&](Communicator& comm) {
      const NamedTensors parameters = short_ones();
      {
        const at::NoGradGuard no_grad;
        for (size_t i = 0; i < parameters.size(); ++i) parameters[i].second.copy_(between[i]);
      }
      ZeroOptimizer optimizer(comm, parameters, options, how);
      optimizer.load_state(together.state(), "test");
      take(optimizer, parameters, 3, comm);
      const Safetensors state = optimizer.state_on_root();
      if (comm.rank() != 0) return;
      const std::vector<at::Tensor> found = values(parameters, state);
      if (ranks == 2) EXPECT_TRUE(same_bits(found, after));
      // One bit of bfloat16.
      else
        EXPECT_LE(distance(found, after), 4e-3);
    });
  }
}

TEST(ZeroMasters, StatesWithoutMastersAreTakenAndOthersNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    const NamedTensors parameters = short_ones();
    const SGDOptions options = SGDOptions(kFine).momentum(0.5);
    ZeroOptimizer optimizer(comm, parameters, options, {.master_weights = true});
    exact_loss(parameters, 0, comm.rank(), 2).backward();
    optimizer.step();
    const Safetensors before = optimizer.state_on_root();
    EXPECT_TRUE(comm.rank() != 0 ||
                !master_in(before, 0).equal(parameters[0].second.detach().to(at::kFloat)));
    SlicedTensors state;
    state.metadata = optimizer.own_state().metadata;
    optimizer.load_state(state, "test");
    const Safetensors now = optimizer.state_on_root();
    EXPECT_TRUE(comm.rank() != 0 ||
                master_in(now, 0).equal(parameters[0].second.detach().to(at::kFloat)));
    const auto refusal = [&](const std::string& name, const at::Tensor& tensor) {
      Safetensors wrong{.tensors = {{name, tensor}}, .metadata = state.metadata};
      return message_of<CheckpointError>([&] { optimizer.load_state(wrong, "file"); });
    };
    EXPECT_THAT(refusal("0.master_weight", torch::ones({37}, at::kBFloat16)),
                HasSubstr("file: 0.master_weight has another shape or dtype"));
    EXPECT_THAT(refusal("0.master_weight", torch::ones({36})), HasSubstr("another shape"));
    EXPECT_THAT(refusal("2.master_weight", torch::ones({3})),
                HasSubstr("2.master_weight belongs to no parameter that has a master"));
    comm.barrier();
  });
}

// The master has more bits than the parameter.
TEST(ZeroMasters, MastersAreBornInFloat32) {
  testing::run_threads(3, [](Communicator& comm) {
    const NamedTensors parameters = short_ones();
    const auto initial = [](const std::string& name, int64_t, const at::Tensor& part) {
      EXPECT_EQ(part.scalar_type(), at::kFloat) << name;
      part.fill_(1 + kFine);
    };
    ZeroOptimizer optimizer(comm, parameters, SGDOptions(1),
                            {.stage = 3, .master_weights = true, .initial = initial});
    EXPECT_TRUE(parameters[0].second.detach().eq(1).all().item<bool>());
    const Safetensors state = optimizer.state_on_root();
    EXPECT_TRUE(comm.rank() != 0 || master_in(state, 1).eq(1 + kFine).all().item<bool>());
    comm.barrier();
  });
}

TEST(ZeroMasters, WhatSomebodyWritesIsHeard) {
  testing::run_threads(2, [](Communicator& comm) {
    const NamedTensors parameters = short_ones();
    ZeroOptimizer optimizer(comm, parameters, SGDOptions(kFine),
                            {.stage = 3, .master_weights = true});
    for (int step = 0; step < 2; ++step) {
      comm.barrier();
      if (step == 1 && comm.rank() == 1) {
        const at::NoGradGuard no_grad;
        parameters[1].second[3].fill_(4);
      }
      comm.barrier();
      parameters[1].second.sum().backward();
      optimizer.step();
    }
    const Safetensors state = optimizer.state_on_root();
    if (comm.rank() != 0) return;
    EXPECT_EQ(master_in(state, 1)[3][0].item<double>(), 4 - kFine);
    EXPECT_EQ(master_in(state, 1)[2][0].item<double>(), 0.5 - 2 * kFine);
  });
}

// The norm is that of the unscaled averages, and an overflow on one rank counts for all.
TEST(ZeroMasters, ScaledGradientsAreClippedAndSkipped) {
  for (const int ranks : {1, 2}) {
    testing::run_threads(ranks, [&](Communicator& comm) {
      const NamedTensors parameters = {{"a", torch::ones({16}, at::kHalf).requires_grad_()}};
      ZeroOptimizer optimizer(comm, parameters, SGDOptions(0.5),
                              {.stage = 2, .master_weights = true});
      const at::Tensor scale = torch::full({}, 1024.0);
      (parameters[0].second * 0.5).sum().to(at::kFloat).mul(1024).backward();
      const auto result = optimizer.step({.max_norm = 100.0, .grad_scale = scale});
      EXPECT_NEAR(*result.grad_norm, 2, 1e-6);
      EXPECT_TRUE(parameters[0].second.detach().eq(0.75).all().item<bool>());
      comm.barrier();
      (parameters[0].second * (comm.rank() == 0 ? 1e5 : 1.0)).sum().to(at::kFloat).backward();
      EXPECT_TRUE(optimizer.step({.grad_scale = scale}).skipped);
      EXPECT_TRUE(parameters[0].second.detach().eq(0.75).all().item<bool>());
      comm.barrier();
    });
  }
}

// Hosts fetch 16 bits, and the numbers equal those of whole copies.
TEST(ZeroMasters, UnitsAreFetchedInSixteenBits) {
  std::vector<at::Tensor> first;
  int64_t full = 0;
  for (const bool units : {false, true}) {
    testing::run_threads(4, [&](Communicator& comm) {
      LayerNet net(3, 12, at::kBFloat16);
      ZeroOptions options{.stage = 3,
                          .bucket_sizes = {.first = 1, .rest = 1},  // one bucket per parameter
                          .master_weights = true,
                          .copies = {0, 0, 1, 1}};
      if (units) options.units = {.model = net.ptr()};
      ZeroOptimizer optimizer(comm, to_named_tensors(net->named_parameters()), AdamWOptions(1e-2),
                              options);
      for (int step = 0; step < 3; ++step) {
        loss_of(net, step, comm.rank(), 4, at::kBFloat16).backward();
        optimizer.step();
      }
      EXPECT_EQ(optimizer.memory(), optimizer.planned_memory());
      EXPECT_EQ(optimizer.memory().units > 0, units);
      const auto whole = optimizer.whole_parameters();
      if (comm.rank() == 0) {
        if (first.empty()) first = copies_of(net->parameters());
        EXPECT_TRUE(same_bits(net->parameters(), first)) << units;
        if (!units) full = optimizer.memory().parameters;
        EXPECT_LE(optimizer.memory().parameters, full);
      }
      comm.barrier();
    });
  }
}

TEST(ZeroMasters, MuonsMatricesHaveThemToo) {
  const optim::MuonOptions options = optim::MuonOptions(0.05).dtype(at::kFloat);
  const auto make = [] {
    return NamedTensors{
        {"a", torch::arange(48).mul(0.3).sin().view({8, 6}).to(at::kBFloat16).requires_grad_()},
        {"b", torch::arange(36).mul(0.7).sin().view({6, 6}).to(at::kBFloat16).requires_grad_()}};
  };
  std::vector<at::Tensor> masters;
  for (const auto& entry : make())
    masters.push_back(entry.second.detach().to(at::kFloat).clone().requires_grad_());
  optim::Muon reference(masters, options);
  for (int step = 0; step < 4; ++step) {
    for (size_t i = 0; i < masters.size(); ++i)
      masters[i].mutable_grad() = gradient_of(masters[i], i, step);
    reference.step();
  }
  testing::run_threads(2, [&](Communicator& comm) {
    const NamedTensors parameters = make();
    ZeroOptimizer optimizer(comm, parameters, options, {.stage = 3, .master_weights = true});
    for (int step = 0; step < 4; ++step) {
      exact_loss(parameters, step, comm.rank(), 2).backward();
      optimizer.step();
    }
    const Safetensors state = optimizer.state_on_root();
    if (comm.rank() != 0) return;
    for (const size_t i : {0U, 1U}) EXPECT_LE(distance({master_in(state, i)}, {masters[i]}), 1e-5);
  });
}

TEST(ZeroMasters, OptionsWithoutASixteenBitParameterAreNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto refusal = [&](const ZeroOptions& options) {
      const NamedTensors wide = {{"a", torch::ones({3}).requires_grad_()}};
      return message_of<InvalidArgument>(
          [&] { ZeroOptimizer(comm, wide, SGDOptions(1), options); });
    };
    EXPECT_THAT(refusal({.master_weights = true}), HasSubstr("model->to(at::kBFloat16)"));
    EXPECT_THAT(refusal({.reduce_float32 = true}),
                HasSubstr("reduce_float32 is for master_weights"));
  });
}

// DeepSpeed's settings over a model that was converted as DeepSpeed converts it.
TEST(ZeroMasters, TheEngineKeepsAConvertedModelInSixteenBits) {
  const std::string config = R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}})";
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto make = [&] {
      at::set_num_threads(1);
      torch::nn::Sequential net(torch::nn::Linear(7, 16), torch::nn::Linear(16, 5));
      net->to(at::kBFloat16);
      const at::NoGradGuard no_grad;
      for (at::Tensor& p : net->parameters())
        p.copy_(torch::arange(p.numel()).sin().mul(0.3).view(p.sizes()));
      return zero::initialize(net, comm, zero::zero_config_from_json(config, "test"));
    };
    const auto train = [&](auto& engine, int first) {
      double loss_before = 0;
      for (int step = first; step < first + 5; ++step) {
        const at::Tensor out = engine.forward(rows_of(inputs(0, at::kFloat), comm.rank(), 2));
        EXPECT_EQ(out.scalar_type(), at::kFloat);
        const at::Tensor loss =
            torch::nn::functional::mse_loss(out, rows_of(targets(0, at::kFloat), comm.rank(), 2));
        engine.backward(loss);
        engine.step();
        loss_before = loss.item<double>();
      }
      return loss_before;
    };
    auto engine = make();
    EXPECT_GT(engine.optimizer().memory().masters, 0);
    const double first = train(engine, 0);
    engine.save_checkpoint(dir.path());
    const double last = train(engine, 5);
    EXPECT_LT(last, first);
    auto other = make();
    other.load_checkpoint(dir.path());
    EXPECT_EQ(train(other, 5), last);
    EXPECT_TRUE(same_bits(other.module()->parameters(), engine.module()->parameters()));
    EXPECT_EQ(other.module()->parameters()[0].scalar_type(), at::kBFloat16);
    comm.barrier();
  });
}

}  // namespace
}  // namespace lockstep::inline v0::zero_test
