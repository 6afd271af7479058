#include "lockstep/parallel/zero/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>
#include <memory>
#include <tuple>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/zero/test_net.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::zero::engine_test {
namespace {

using namespace zero_test;
using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

ZeroConfig config_of(const std::string& text) {
  return zero_config_from_json(text, "test");
}

// Micro-batches of 12 rows over all ranks.
std::string with_sgd(int ranks, const std::string& more = "", int stage = 1) {
  return R"({"train_micro_batch_size_per_gpu": )" + std::to_string(kRows / ranks) +
         R"(, "zero_optimization": {"stage": )" + std::to_string(stage) +
         R"(}, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})" + more + "}";
}

template <typename M>
StepReport train_step(Engine<M>& engine, int step, at::ScalarType dtype = at::kDouble) {
  const at::Tensor loss = loss_of(engine, step, engine.comm().rank(), engine.comm().size(), dtype);
  engine.backward(loss);
  return engine.step();
}

TEST(ZeroEngine, TheTutorialsFourLinesRun) {
  TestNet one;
  optim::FusedAdamW reference(trained(one), AdamWOptions(1e-4).weight_decay(0));
  for (int step = 0; step < 5; ++step) {
    reference.zero_grad();
    loss_of(one, step).backward();
    reference.step();
  }
  for (const char* stage :
       {"", R"(, "zero_optimization": {"stage": 1})", R"(, "zero_optimization": {"stage": 2})",
        R"(, "zero_optimization": {"stage": 3})"}) {
    testing::run_threads(2, [&](Communicator& comm) {
      auto engine = initialize(TestNet(), comm,
                               config_of(R"({
        "train_micro_batch_size_per_gpu": 6,
        "optimizer": { "type": "Adam", "params": { "lr": 1e-4 } })" +
                                         std::string(stage) + "}"));
      for (int step = 0; step < 5; ++step) EXPECT_TRUE(train_step(engine, step).boundary);
      EXPECT_LE(distance(trained(engine), trained(one)), 1e-12);
      EXPECT_EQ(engine.train_batch_size(), 12);
      EXPECT_EQ(engine.train_micro_batch_size(), 6);
      EXPECT_EQ(engine.global_steps(), 5);
      EXPECT_EQ(engine.global_samples(), 60);
      EXPECT_EQ(engine.skipped_steps(), 0);
      EXPECT_EQ(engine.learning_rate(), 1e-4);
    });
  }
}

TEST(ZeroEngine, AccumulatesMicroBatchesBeforeAStep) {
  TestNet one;
  optim::FusedSGD reference(trained(one), SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 2; ++step) {
    reference.zero_grad();
    for (int micro = 0; micro < 3; ++micro) (loss_of(one, 3 * step + micro) / 3).backward();
    reference.step();
  }
  for (const int ranks : {1, 2}) {
    for (const int stage : {1, 2, 3}) {
      testing::run_threads(ranks, [&](Communicator& comm) {
        auto engine =
            initialize(TestNet(), comm,
                       config_of(with_sgd(ranks, R"(, "gradient_accumulation_steps": 3)", stage)));
        EXPECT_EQ(engine.train_batch_size(), 36);
        const auto before = copies_of(trained(engine));
        for (int micro = 0; micro < 6; ++micro) {
          EXPECT_EQ(engine.is_gradient_accumulation_boundary(), micro % 3 == 2);
          EXPECT_EQ(train_step(engine, micro).boundary, micro % 3 == 2);
          EXPECT_EQ(same_bits(trained(engine), before), micro < 2);
        }
        EXPECT_EQ(engine.micro_steps(), 6);
        EXPECT_EQ(engine.global_steps(), 2);
        EXPECT_LE(distance(trained(engine), trained(one)), 1e-12) << "stage " << stage;
      });
    }
  }
}

TEST(ZeroEngine, MicroBatchesOfUnequalSizeAreOneBatchByTheirShares) {
  const auto make = [] {
    torch::nn::Linear net(7, 5);
    net->to(at::kDouble);
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : net->parameters())
      p.copy_(at::linspace(-0.5, 0.6, p.numel(), at::kDouble).view(p.sizes()));
    return net;
  };
  torch::nn::Linear one = make();
  optim::FusedSGD reference(one->parameters(), SGDOptions(0.1).momentum(0.9));
  loss_of(one, 0).backward();
  reference.step();
  for (const int stage : {1, 2}) {
    testing::run_threads(2, [&](Communicator& comm) {
      auto engine = initialize(
          make(), comm, config_of(with_sgd(2, R"(, "gradient_accumulation_steps": 2)", stage)));
      const int64_t begin[] = {0, 4, 6, 7, kRows};  // of each rank's first and second micro-batch
      for (int64_t i = 2 * comm.rank(); i < 2 * comm.rank() + 2; ++i) {
        const at::Tensor output = engine(inputs(0).slice(0, begin[i], begin[i + 1]));
        const at::Tensor target = targets(0).slice(0, begin[i], begin[i + 1]);
        engine.backward(torch::nn::functional::mse_loss(output, target),
                        static_cast<double>(begin[i + 1] - begin[i]) / kRows);
        EXPECT_EQ(engine.step().boundary, i % 2 == 1);
      }
      EXPECT_LE(distance(trained(engine), one->parameters()), 1e-14) << "stage " << stage;
    });
  }
}

// Each rank has updated its own running statistics; the saved ones are rank 0's.
TEST(ZeroEngine, EvaluatesTheStatisticsThatItSaves) {
  const TestDirectory dir;
  for (const int stage : {1, 3}) {
    testing::run_threads(2, [&](Communicator& comm) {
      auto engine = initialize(TestNet(at::kDouble, /*batch_norm=*/true), comm,
                               config_of(with_sgd(2, "", stage)));
      const auto means = [&] {
        return comm.all_gather(engine->named_buffers()["batch.running_mean"].view({1, -1}));
      };
      train_step(engine, 0);
      const at::Tensor apart = means();
      ASSERT_FALSE(apart[0].equal(apart[1])) << "nothing differs, and nothing is tested";
      engine.eval();
      EXPECT_FALSE(engine->is_training());
      EXPECT_TRUE(means()[1].equal(apart[0]));
      engine.save_checkpoint(dir / std::to_string(stage), "evaluated");
      engine.train();
      train_step(engine, 1);
      ASSERT_FALSE(means()[0].equal(means()[1]));
      engine.save_checkpoint(dir / std::to_string(stage), "trained");
      EXPECT_TRUE(means()[0].equal(means()[1])) << "whoever evaluates after a save, too";
      const at::NoGradGuard no_grad;
      engine.eval();
      const at::Tensor measured = engine(inputs(0));
      if (comm.rank() != 0) return;
      TestNet saved(at::kDouble, /*batch_norm=*/true);
      set_module_state(*saved,
                       read_checkpoint(dir / std::to_string(stage) / "trained").model.tensors, "");
      saved->eval();
      EXPECT_TRUE(saved(inputs(0)).equal(measured)) << "stage " << stage;
    });
  }
}

TEST(ZeroEngine, ClipsWhatTheConfigurationSays) {
  TestNet one;
  optim::FusedSGD reference(trained(one), SGDOptions(0.1).momentum(0.9));
  loss_of(one, 0).backward();
  const auto expected = reference.step({.max_norm = 0.01});
  for (const int stage : {1, 2, 3}) {
    testing::run_threads(3, [&](Communicator& comm) {
      auto engine = initialize(TestNet(), comm,
                               config_of(with_sgd(3, R"(, "gradient_clipping": 0.01)", stage)));
      EXPECT_NEAR(*train_step(engine, 0).grad_norm, *expected.grad_norm, 1e-9);
      EXPECT_LE(distance(trained(engine), trained(one)), 1e-8);
    });
  }
}

TEST(ZeroEngine, TheLearningRateFollowsTheSchedule) {
  testing::run_threads(2, [](Communicator& comm) {
    auto engine = initialize(TestNet(), comm, config_of(with_sgd(2, R"(,
      "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2,
        "warmup_max_lr": 0.4, "warmup_type": "linear", "total_num_steps": 4}})")));
    std::vector<double> rates;
    for (int step = 0; step < 6; ++step) {
      rates.push_back(engine.learning_rate());
      const auto before = copies_of(trained(engine));
      train_step(engine, step);
      EXPECT_EQ(same_bits(trained(engine), before), rates.back() == 0) << step;
    }
    EXPECT_EQ(rates, (std::vector<double>{0, 0, 0.2, 0.4, 0.2, 0}));
  });
}

// Remembers the dtype of its forward's computation.
class WatchedImpl : public torch::nn::Module {
 public:
  WatchedImpl() : linear_(register_module("linear", torch::nn::Linear(8, 8))) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : parameters()) {
      p.copy_(torch::arange(p.numel(), at::kFloat).sin().mul(0.2).view(p.sizes()));
    }
  }
  std::tuple<at::Tensor, std::vector<at::Tensor>, int> forward(const at::Tensor& x, double factor) {
    const at::Tensor y = linear_(x);
    dtype = y.scalar_type();
    return {y * factor, {y}, 3};
  }
  at::ScalarType dtype = at::kDouble;

 private:
  torch::nn::Linear linear_;
};

at::Tensor watched_input(int step) {
  return torch::arange(32, at::kFloat).add(step).cos().view({4, 8});
}

// A module with another kind of holder and forward, under autocast.
TEST(ZeroEngine, SixteenBitsAreComputedInAndFloat32ComesOut) {
  for (const bool bf16 : {true, false}) {
    testing::run_threads(2, [&](Communicator& comm) {
      at::set_num_threads(1);
      auto module = std::make_shared<WatchedImpl>();
      auto engine = initialize(
          module, comm,
          config_of(with_sgd(3, bf16 ? R"(, "bf16": {"enabled": true})"
                                     : R"(, "fp16": {"enabled": true, "loss_scale": 64})")));
      double first = 0, last = 0;
      for (int step = 0; step < 10; ++step) {
        auto [y, all, number] = engine.forward(watched_input(0), 1.0);
        EXPECT_EQ(module->dtype, bf16 ? at::kBFloat16 : at::kHalf);
        EXPECT_EQ(y.scalar_type(), at::kFloat);
        EXPECT_EQ(all[0].scalar_type(), at::kFloat);
        EXPECT_EQ(number, 3);
        const at::Tensor loss = y.square().mean();
        (step == 0 ? first : last) = loss.item<double>();
        engine.backward(loss);
        engine.step();
      }
      EXPECT_LT(last, first / 2);
      for (const auto& p : module->parameters()) EXPECT_EQ(p.scalar_type(), at::kFloat);
      EXPECT_EQ(engine.loss_scale(), bf16 ? 1 : 64);
      EXPECT_EQ(engine.skipped_steps(), 0);
    });
  }
}

// An overflow on one rank counts for all; the learning rate does not advance.
TEST(ZeroEngine, Float16StepsThatOverflowAreLeftOut) {
  testing::run_threads(2, [](Communicator& comm) {
    at::set_num_threads(1);
    auto engine = initialize(std::make_shared<WatchedImpl>(), comm, config_of(with_sgd(3, R"(,
      "fp16": {"enabled": true, "initial_scale_power": 6, "hysteresis": 2},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}})")));
    std::vector<double> scales;
    for (int step = 0; step < 6; ++step) {
      const bool overflow = step == 2 || step == 3;
      const double factor =
          overflow && comm.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
      const auto before = copies_of(engine->parameters());
      const double rate = engine.learning_rate();
      engine.backward(std::get<0>(engine.forward(watched_input(step), factor)).square().mean());
      const StepReport report = engine.step();
      EXPECT_EQ(report.skipped, overflow) << step;
      EXPECT_EQ(same_bits(engine->parameters(), before), overflow || rate == 0) << step;
      EXPECT_EQ(engine.learning_rate() == rate, overflow || step == 0) << step;
      scales.push_back(engine.loss_scale());
    }
    EXPECT_EQ(scales, (std::vector<double>{64, 64, 64, 32, 32, 32}));
    EXPECT_EQ(engine.global_steps(), 6);
    EXPECT_EQ(engine.skipped_steps(), 2);
  });
}

TEST(ZeroEngine, NormsAndBiasesGoWithoutDecayIfAskedFor) {
  const std::string text = R"({"train_batch_size": 12, "zero_optimization": {"stage": 1},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.3}}})";
  TestNet one;
  const auto options = AdamWOptions(0.01).weight_decay(0.3);
  optim::FusedAdamW reference(optim::decay_groups(*one, options), options);
  loss_of(one, 0).backward();
  reference.step();
  testing::run_threads(2, [&](Communicator& comm) {
    auto engine = initialize(TestNet(), comm, config_of(text), {.no_decay = optim::NoDecay()});
    train_step(engine, 0);
    EXPECT_LE(distance(trained(engine), trained(one)), 1e-12);
  });
}

TEST(ZeroEngine, FrozenParametersAndBuffersAreRankZeros) {
  testing::run_threads(2, [](Communicator& comm) {
    TestNet net(at::kDouble, /*batch_norm=*/true);
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& p : net->parameters()) p.add_(comm.rank());
      for (at::Tensor& b : net->buffers()) b.add_(comm.rank());
    }
    auto engine = initialize(net, comm, config_of(with_sgd(2)));
    const auto alike = [&](const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) {
        const at::Tensor all = comm.all_gather(tensor.detach().unsqueeze(0));
        if (!all[0].equal(all[1])) return false;
      }
      return true;
    };
    EXPECT_TRUE(alike(net->parameters()) && alike(net->buffers()));
    const at::Tensor frozen = net->named_parameters()["shift"].detach().clone();
    train_step(engine, 0);
    EXPECT_TRUE(alike(net->parameters()));
    EXPECT_FALSE(alike(net->buffers()));  // each rank has seen its own rows
    engine.eval();
    const auto statistics = copies_of(net->buffers());
    engine.forward(inputs(0));
    EXPECT_TRUE(same_bits(net->buffers(), statistics));
    engine.train();
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(net->named_parameters()["shift"].equal(frozen));
  });
}

TEST(ZeroEngine, AModelThatChangesAfterwardsIsNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    TestNet net;
    auto engine = initialize(net, comm, config_of(with_sgd(2)));
    train_step(engine, 0);
    const auto said = [&] { return message_of<InvalidArgument>([&] { train_step(engine, 1); }); };
    net->named_parameters()["shift"].set_requires_grad(true);  // frozen until now
    EXPECT_THAT(said(), HasSubstr("zero::Engine: parameter 'shift' required no gradient"));
    net->named_parameters()["shift"].set_requires_grad(false);
    net->register_parameter("more", torch::ones({2}));
    EXPECT_THAT(said(), HasSubstr("parameter 'more' was added"));
  });
}

TEST(ZeroEngine, CallsOutOfOrderAreNamed) {
  testing::run_threads(1, [](Communicator& comm) {
    auto engine = initialize(TestNet(), comm, config_of(with_sgd(1)));
    EXPECT_THAT(message_of<InvalidArgument>([&] { engine.step(); }),
                HasSubstr("step() without a backward()"));
    EXPECT_THROW(engine.backward(engine.forward(inputs(0))), InvalidArgument);
    EXPECT_THROW(engine.backward(torch::ones({})), InvalidArgument);
    engine.backward(loss_of(engine, 0));
    EXPECT_THAT(message_of<InvalidArgument>([&] { engine.backward(loss_of(engine, 0)); }),
                HasSubstr("twice without step()"));
    const TestDirectory directory;
    EXPECT_THAT(message_of<InvalidArgument>([&] { engine.save_checkpoint(directory.path()); }),
                HasSubstr("in the midst of a step"));
    engine.step();
  });
}

TEST(ZeroEngine, RanksWithOtherConfigurationsGetMismatch) {
  testing::run_threads(3, [](Communicator& comm) {
    const auto text = with_sgd(3, comm.rank() == 2 ? R"(, "gradient_clipping": 1)" : "");
    EXPECT_THAT(message_of<Mismatch>([&] { initialize(TestNet(), comm, config_of(text)); }),
                HasSubstr("rank 2 has another configuration"));
  });
}

// Uses a schedule, accumulation, BatchNorm and a dynamic loss scale.
const char* const kRich = R"(, "gradient_accumulation_steps": 2,
  "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 3, "total_num_steps": 9}},
  "fp16": {"enabled": true, "initial_scale_power": 10, "loss_scale_window": 2})";

TEST(ZeroEngine, AResumedRunIsTheUnbrokenOneBitForBit) {
  const TestDirectory directory;
  testing::run_threads(2, [&](Communicator& comm) {
    const ZeroConfig config = config_of(with_sgd(2, kRich));
    auto whole = initialize(TestNet(at::kFloat, true), comm, config);
    for (int micro = 0; micro < 14; ++micro) {
      if (micro == 8) whole.save_checkpoint(directory.path(), "", R"({"epoch": 3})");
      train_step(whole, micro, at::kFloat);
    }
    auto resumed = initialize(TestNet(at::kFloat, true), comm, config);
    const LoadedCheckpoint loaded = resumed.load_checkpoint(directory.path());
    EXPECT_EQ(loaded.tag, "global_step4");
    EXPECT_EQ(loaded.client_state, R"({"epoch": 3})");
    EXPECT_EQ(resumed.global_steps(), 4);
    for (int micro = 8; micro < 14; ++micro) train_step(resumed, micro, at::kFloat);
    EXPECT_TRUE(same_bits(resumed->parameters(), whole->parameters()));
    EXPECT_TRUE(same_bits(resumed->buffers(), whole->buffers()));
    EXPECT_EQ(resumed.loss_scale(), whole.loss_scale());
    EXPECT_GT(resumed.loss_scale(), 1024);
    EXPECT_EQ(resumed.learning_rate(), whole.learning_rate());
  });
}

TEST(ZeroEngine, ACheckpointGoesOnOnAnotherNumberOfRanks) {
  const TestDirectory directory;
  TestNet one;
  optim::FusedSGD reference(trained(one), SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 6; ++step) {
    reference.zero_grad();
    loss_of(one, step).backward();
    reference.step();
  }
  testing::run_threads(4, [&](Communicator& comm) {
    auto engine = initialize(TestNet(), comm, config_of(with_sgd(4)));
    for (int step = 0; step < 3; ++step) train_step(engine, step);
    engine.save_checkpoint(directory.path(), "first");
  });
  testing::run_threads(3, [&](Communicator& comm) {
    auto engine = initialize(TestNet(), comm, config_of(with_sgd(3)));
    EXPECT_EQ(engine.load_checkpoint(directory.path(), "first").tag, "first");
    for (int step = 3; step < 6; ++step) train_step(engine, step);
    EXPECT_LE(distance(trained(engine), trained(one)), 1e-12);
    EXPECT_EQ(engine.global_steps(), 6);
  });
}

TEST(ZeroEngine, WhatIsNoCheckpointIsNamed) {
  const TestDirectory directory;
  testing::run_threads(2, [&](Communicator& comm) {
    auto engine = initialize(TestNet(), comm, config_of(with_sgd(2)));
    const auto refusal = [&](const std::string& tag) {
      return message_of<CheckpointError>([&] { engine.load_checkpoint(directory.path(), tag); });
    };
    EXPECT_THAT(refusal(""), HasSubstr("latest"));
    EXPECT_THAT(refusal("gone"), HasSubstr("gone"));
    EXPECT_THROW(engine.load_checkpoint(directory.path(), "../x"), InvalidArgument);
    EXPECT_THROW(engine.save_checkpoint(directory.path(), "latest"), InvalidArgument);
    engine.save_checkpoint(directory.path());
    comm.barrier();
    if (comm.rank() == 0) directory.write("latest", "../../etc");
    comm.barrier();
    EXPECT_THAT(refusal(""), HasSubstr("does not name a checkpoint"));
    comm.barrier();
  });
}

}  // namespace
}  // namespace lockstep::inline v0::zero::engine_test
