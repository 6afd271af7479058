#include "lockstep/parallel/zero/zero_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/decay_groups.h"
#include "lockstep/optim/learning_rate.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/zero/test_net.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::zero_test {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::SGDOptions;

constexpr int kSteps = 20;
constexpr flat::BucketSizes kSmallBuckets = {.first = 200, .rest = 300};

std::unique_ptr<Optimizer> plain(const ZeroAlgorithm& algorithm, TestNet& net) {
  if (const auto* sgd = std::get_if<SGDOptions>(&algorithm))
    return std::make_unique<optim::FusedSGD>(trained(net), *sgd);
  if (const auto* adam = std::get_if<AdamOptions>(&algorithm))
    return std::make_unique<optim::FusedAdam>(trained(net), *adam);
  return std::make_unique<optim::FusedAdamW>(trained(net), std::get<AdamWOptions>(algorithm));
}

void train(TestNet& net, Optimizer& optimizer, int from, int to, int part, int parts,
           at::ScalarType dtype = at::kDouble) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    loss_of(net, step, part, parts, dtype).backward();
    optimizer.step();
  }
}

std::vector<ZeroAlgorithm> algorithms() {
  return {SGDOptions(0.05).momentum(0.9).weight_decay(0.01).dampening(0.1),
          SGDOptions(0.05).momentum(0.9).nesterov(true), SGDOptions(0.05),
          AdamOptions(1e-2).weight_decay(0.01).amsgrad(true), AdamWOptions(1e-2).weight_decay(0.1)};
}

TEST(ZeroOptimizer, HooksMoveWithTheirParameters) {
  const ZeroAlgorithm algorithm = AdamWOptions(1e-2);
  const auto make = [] {
    TestNet net;
    wrap_forward(*net, "first", [](const Forward& forward, const at::Tensor& x) {
      return forward(x) * 0.5 + forward(-x);
    });
    return net;
  };
  TestNet one = make(), without;
  const auto reference = plain(algorithm, one);
  train(one, *reference, 0, kSteps, 0, 1);
  const auto other = plain(algorithm, without);
  train(without, *other, 0, kSteps, 0, 1);
  EXPECT_GT(distance(trained(without), trained(one)), 1e-3);
  testing::run_threads(2, [&](Communicator& comm) {
    TestNet net = make();
    ZeroOptimizer optimizer(comm, named_trained(net), algorithm, {.bucket_sizes = kSmallBuckets});
    train(net, optimizer, 0, kSteps, comm.rank(), comm.size());
    EXPECT_LE(distance(trained(net), trained(one)), 1e-10);
  });
}

TEST(ZeroOptimizer, AnyNumberOfRanksIsOneProcess) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const ZeroAlgorithm& algorithm : algorithms()) {
      TestNet one(dtype);
      const auto reference = plain(algorithm, one);
      train(one, *reference, 0, kSteps, 0, 1, dtype);
      for (const int ranks : {1, 2, 3, 4}) {
        for (const int stage : {0, 1, 2, 3}) {
          testing::run_threads(ranks, [&](Communicator& comm) {
            TestNet net(dtype);
            ZeroOptimizer optimizer(comm, named_trained(net), algorithm,
                                    {.stage = stage, .bucket_sizes = kSmallBuckets});
            EXPECT_GT(optimizer.bucket_count(), 2u);
            train(net, optimizer, 0, kSteps, comm.rank(), comm.size(), dtype);
            EXPECT_LE(distance(trained(net), trained(one)), dtype == at::kFloat ? 1e-6 : 1e-10)
                << "algorithm " << algorithm.index() << ", " << ranks << " ranks, " << dtype;
          });
        }
      }
    }
  }
}

TEST(ZeroOptimizer, RepeatsBitForBitAndRanksAreEqual) {
  std::vector<std::vector<at::Tensor>> results(6);
  for (const size_t run : {0u, 1u}) {
    testing::run_threads(3, [&](Communicator& comm) {
      TestNet net(at::kFloat);
      ZeroOptimizer optimizer(comm, named_trained(net), AdamWOptions(1e-2),
                              {.bucket_sizes = kSmallBuckets});
      for (int step = 0; step < 5; ++step) {
        loss_of(net, step, comm.rank(), 3, at::kFloat).backward();
        optimizer.step({.max_norm = 0.1});
      }
      results[run * 3 + static_cast<size_t>(comm.rank())] = copies_of(trained(net));
    });
  }
  for (const auto& result : results) EXPECT_TRUE(same_bits(result, results[0]));
}

TEST(ZeroOptimizer, StateIsAnNthOfTheWholeOnEveryRank) {
  TestNet net;
  int64_t numel = 0;
  for (const at::Tensor& p : trained(net)) numel += p.numel();
  for (const int ranks : {1, 2, 3, 4}) {
    std::mutex lock;
    std::vector<int64_t> kept;
    int64_t whole = 0;
    testing::run_threads(ranks, [&](Communicator& comm) {
      TestNet own;
      ZeroOptimizer optimizer(comm, named_trained(own), AdamWOptions(1e-2));
      EXPECT_EQ(optimizer.state_numel(), 0);
      train(own, optimizer, 0, 1, comm.rank(), comm.size());
      const Safetensors state = optimizer.state_on_root();
      const std::lock_guard guard(lock);
      kept.push_back(optimizer.state_numel());
      for (const auto& [name, tensor] : state.tensors) {
        if (name.find("exp_avg") != std::string::npos) whole += tensor.numel();
      }
    });
    EXPECT_EQ(whole, 2 * numel);
    // Two moments; every tensor, and every part of the only bucket, is padded to 8 doubles.
    const int64_t padding = 8 * (static_cast<int64_t>(trained(net).size()) + ranks);
    for (const int64_t one : kept) {
      EXPECT_EQ(one, kept[0]);
      EXPECT_GE(one * ranks, 2 * numel);
      EXPECT_LE(one * ranks, 2 * (numel + padding));
    }
  }
}

// The bits are the same; the directory stays empty, even meanwhile.
TEST(ZeroOptimizer, StateMayLieInFiles) {
  const TestDirectory dir;
  for (const ZeroAlgorithm& algorithm : algorithms()) {
    testing::run_threads(2, [&](Communicator& comm) {
      TestNet in_memory, in_files;
      const auto options = [&](std::string directory) {
        return ZeroOptions{
            .stage = 3, .bucket_sizes = kSmallBuckets, .state_directory = std::move(directory)};
      };
      ZeroOptimizer expected(comm, named_trained(in_memory), algorithm, options(""));
      ZeroOptimizer first(comm, named_trained(in_files), algorithm, options(dir.path()));
      train(in_memory, expected, 0, 5, comm.rank(), 2);
      train(in_files, first, 0, 5, comm.rank(), 2);
      EXPECT_TRUE(dir.names().empty());
      EXPECT_EQ(first.memory().state, expected.memory().state);
      EXPECT_EQ(distance(in_files->parameters(), in_memory->parameters()), 0);
    });
  }
  testing::run_threads(2, [&](Communicator& comm) {
    TestNet net;
    const auto make = [&] {
      ZeroOptimizer(comm, named_trained(net), AdamWOptions(1e-3),
                    {.state_directory = comm.rank() == 0 ? dir.path() : dir / "none"});
    };
    if (comm.rank() == 0)
      EXPECT_THAT(message_of<Error>(make), HasSubstr("rank(s) 1 cannot put the optimizer's state"));
    else
      EXPECT_THAT(message_of<SystemError>(make), HasSubstr("memory in " + (dir / "none").string()));
  });
}

TEST(ZeroOptimizer, GroupsKeepTheirOptions) {
  TestNet one;
  const auto options = AdamWOptions(1e-2).weight_decay(0.3);
  optim::FusedAdamW reference(optim::decay_groups(*one, options), options);
  train(one, reference, 0, 5, 0, 1);
  testing::run_threads(2, [&](Communicator& comm) {
    TestNet net;
    ZeroOptimizer optimizer(comm, optim::decay_groups(*net, options), {}, options);
    ASSERT_EQ(optimizer.param_groups().size(), 2u);
    train(net, optimizer, 0, 5, comm.rank(), 2);
    EXPECT_LE(distance(trained(net), trained(one)), 1e-12);
    optim::set_learning_rate(optimizer, 0);
    const auto before = copies_of(trained(net));
    train(net, optimizer, 5, 6, comm.rank(), 2);
    EXPECT_TRUE(same_bits(trained(net), before));
  });
}

TEST(ZeroOptimizer, BackwardsUnderNoSyncDoNotCommunicateAndAddUp) {
  TestNet one;
  optim::FusedSGD reference(trained(one), SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    reference.zero_grad();
    for (int micro = 0; micro < 4; ++micro) (loss_of(one, 4 * step + micro) / 4).backward();
    reference.step();
  }
  for (const bool overlap : {true, false}) {
    testing::run_threads(2, [&](Communicator& comm) {
      TestNet net;
      ZeroOptimizer optimizer(comm, named_trained(net), SGDOptions(0.1).momentum(0.9),
                              {.overlap = overlap});
      for (int step = 0; step < 3; ++step) {
        for (int micro = 0; micro < 4; ++micro) {
          const auto calls = optimizer.stats().collectives;
          auto loss = loss_of(net, 4 * step + micro, comm.rank(), 2) / 4;
          if (micro < 3) {
            const auto guard = optimizer.no_sync();
            loss.backward();
            EXPECT_EQ(optimizer.stats().collectives, calls);
          } else {
            loss.backward();
            EXPECT_EQ(optimizer.stats().collectives > calls, overlap);
          }
        }
        optimizer.step();
      }
      EXPECT_LE(distance(trained(net), trained(one)), 1e-12);
    });
  }
}

TEST(ZeroOptimizer, ClipsByTheNormOfAllParts) {
  TestNet one;
  optim::FusedAdamW reference(trained(one), AdamWOptions(1e-2));
  std::vector<double> norms;
  for (int step = 0; step < 5; ++step) {
    reference.zero_grad();
    (loss_of(one, step) * 100).backward();
    norms.push_back(*reference.step({.max_norm = 0.5}).grad_norm);
    EXPECT_GT(norms.back(), 0.5);
  }
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      testing::run_threads(ranks, [&](Communicator& comm) {
        TestNet net;
        ZeroOptimizer optimizer(comm, named_trained(net), AdamWOptions(1e-2),
                                {.stage = stage, .bucket_sizes = kSmallBuckets});
        for (int step = 0; step < 5; ++step) {
          (loss_of(net, step, comm.rank(), ranks) * 100).backward();
          const auto result = optimizer.step({.max_norm = 0.5});
          const double norm = norms[static_cast<size_t>(step)];
          EXPECT_NEAR(*result.grad_norm, norm, 1e-7 * norm);
        }
        EXPECT_LE(distance(trained(net), trained(one)), 1e-7);
      });
    }
  }
}

// An infinity on one rank only.
TEST(ZeroOptimizer, AnOverflowAnywhereIsSkippedEverywhere) {
  testing::run_threads(3, [](Communicator& comm) {
    TestNet net;
    ZeroOptimizer optimizer(comm, named_trained(net), AdamWOptions(1e-2));
    const at::Tensor scale = torch::full({}, 1024.0);
    const auto step = [&](bool overflow, const optim::StepOptions& options) {
      at::Tensor loss = loss_of(net, 1, comm.rank(), 3) * 1024;
      if (overflow && comm.rank() == 1) loss = loss * std::numeric_limits<double>::infinity();
      loss.backward();
      return optimizer.step(options);
    };
    auto before = copies_of(trained(net));
    EXPECT_TRUE(step(true, {.grad_scale = scale}).skipped);
    EXPECT_TRUE(step(true, {.max_norm = 1.0, .on_non_finite = optim::NonFinite::kSkip}).skipped);
    EXPECT_TRUE(step(false, {.found_inf = torch::ones({1})}).skipped);
    EXPECT_TRUE(same_bits(trained(net), before));
    EXPECT_THAT(message_of<Error>([&] { step(true, {.max_norm = 1.0}); }),
                HasSubstr("norm is not finite (first: 'scale')"));
    EXPECT_TRUE(same_bits(trained(net), before));
    const auto result = step(false, {.grad_scale = scale});
    EXPECT_FALSE(result.skipped);
    EXPECT_FALSE(same_bits(trained(net), before));

    TestNet one;
    optim::FusedAdamW reference(trained(one), AdamWOptions(1e-2));
    loss_of(one, 1).backward();
    reference.step();
    EXPECT_LE(distance(trained(net), trained(one)), 1e-12);  // a scale of 1024 divides exactly
  });
}

TEST(ZeroOptimizer, GradScalerUnscalesTheAverages) {
  TestNet one;
  optim::FusedSGD reference(trained(one), SGDOptions(0.1));
  train(one, reference, 0, 3, 0, 1);
  for (const int stage : {0, 1, 2, 3}) {
    testing::run_threads(2, [&](Communicator& comm) {
      TestNet net;
      ZeroOptimizer optimizer(comm, named_trained(net), SGDOptions(0.1), {.stage = stage});
      amp::GradScaler scaler(comm, {.init_scale = 4096});
      for (int step = 0; step < 3; ++step) {
        scaler.scale(loss_of(net, step, comm.rank(), 2)).backward();
        EXPECT_TRUE(scaler.step(optimizer));
        scaler.update();
      }
      const auto before = copies_of(trained(net));
      at::Tensor loss = loss_of(net, 3, comm.rank(), 2);
      if (comm.rank() == 1) loss = loss * std::numeric_limits<double>::infinity();
      scaler.scale(loss).backward();
      EXPECT_FALSE(scaler.step(optimizer));
      scaler.update();
      EXPECT_TRUE(same_bits(trained(net), before));
      EXPECT_LE(distance(before, trained(one)), 1e-12);
    });
  }
}

at::Tensor leaf(int64_t n, at::ScalarType dtype = at::kDouble) {
  return torch::ones({n}, dtype).set_requires_grad(true);
}

TEST(ZeroOptimizer, AnUnusedParametersGradientCountsAsZero) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto a = leaf(5), b = leaf(70), c = leaf(3);
    ZeroOptimizer optimizer(comm, {{"a", a}, {"b", b}, {"c", c}},
                            SGDOptions(1).momentum(0.5).weight_decay(0.25));
    (a.sum() * 2 + (comm.rank() == 0 ? b.sum() : b.sum() * 0)).backward();
    optimizer.step();
    EXPECT_TRUE(a.detach().eq(1 - 2 - 0.25).all().item<bool>());
    EXPECT_TRUE(b.detach().eq(1 - 0.5 - 0.25).all().item<bool>());
    EXPECT_TRUE(c.detach().eq(1 - 0.25).all().item<bool>());
    EXPECT_FALSE(a.grad().defined());
    (comm.rank() == 0 ? a.sum() : b.sum()).backward();  // each rank uses another
    optimizer.step();
    EXPECT_TRUE(c.detach().eq(0.75 - 0.125 - 0.75 * 0.25).all().item<bool>());
  });
}

TEST(ZeroOptimizer, UnusedParametersAreNamedIfAskedFor) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto a = leaf(5), b = leaf(7), c = leaf(3);
    ZeroOptimizer optimizer(comm, {{"a", a}, {"b", b}, {"c", c}}, SGDOptions(1),
                            {.ignore_unused = false});
    (comm.rank() == 0 ? a.sum() : b.sum()).backward();
    EXPECT_THAT(message_of<InvalidArgument>([&] { optimizer.step(); }), HasSubstr("reached 'c';"));
    (a.sum() + b.sum() + c.sum()).backward();
    EXPECT_NO_THROW(optimizer.step());
  });
}

TEST(ZeroOptimizer, SeveralDtypesHaveBucketsOfTheirOwn) {
  testing::run_threads(3, [](Communicator& comm) {
    const auto a = leaf(5), b = leaf(70, at::kFloat), c = leaf(9, at::kBFloat16);
    const auto empty = leaf(0);
    ZeroOptimizer optimizer(comm, {{"a", a}, {"b", b}, {"c", c}, {"empty", empty}},
                            AdamWOptions(0.5).weight_decay(0));
    EXPECT_EQ(optimizer.bucket_count(), 3u);
    (a.sum() + b.sum() + c.sum().to(at::kDouble)).backward();
    optimizer.step();
    for (const at::Tensor& tensor : {a, b, c})
      EXPECT_LE(tensor.detach().to(at::kDouble).sub(0.5).abs().max().item<double>(), 1e-2);
  });
}

TEST(ZeroOptimizer, ZeroGradAndStrangeGradientsDoNoHarm) {
  testing::run_threads(2, [](Communicator& comm) {
    TestNet net, other;
    ZeroOptimizer optimizer(comm, named_trained(net), SGDOptions(0.1));
    ZeroOptimizer same(comm, named_trained(other), SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      loss_of(other, step, comm.rank(), 2).backward();
      same.step();
      for (at::Tensor& p : trained(net)) {  // other memory, as user code might assign
        if (step == 2) p.mutable_grad() = torch::zeros_like(p);
      }
      if (step != 2) net->zero_grad(/*set_to_none=*/step == 0);
      loss_of(net, step, comm.rank(), 2).backward();
      optimizer.step();
      optimizer.zero_grad(/*set_to_none=*/step == 1);
    }
    EXPECT_TRUE(same_bits(trained(net), trained(other)));
  });
}

TEST(ZeroOptimizer, ARankThatSkippedItsBackwardIsNamed) {
  testing::run_threads(3, [](Communicator& comm) {
    const auto a = leaf(5);
    ZeroOptimizer optimizer(comm, {{"a", a}}, SGDOptions(1));
    optimizer.step();  // no rank has a gradient: nothing happens
    EXPECT_TRUE(a.detach().eq(1).all().item<bool>());
    if (comm.rank() != 1) a.sum().backward();
    EXPECT_THAT(message_of<Mismatch>([&] { optimizer.step(); }),
                HasSubstr("rank(s) 1 called step() without a backward"));
  });
}

TEST(ZeroOptimizer, TwoBackwardsOfAStepMustBeSaid) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto a = leaf(5);
    ZeroOptimizer optimizer(comm, {{"a", a}}, SGDOptions(1));
    a.sum().backward();
    EXPECT_THAT(message_of<InvalidArgument>([&] { a.sum().backward(); }), HasSubstr("no_sync()"));
    const auto b = leaf(5);
    ZeroOptimizer patient(comm, {{"b", b}}, SGDOptions(1), {.overlap = false});
    b.sum().backward();
    b.sum().backward();
    patient.step();
    EXPECT_TRUE(b.detach().eq(-1).all().item<bool>());
    patient.synchronize();
    EXPECT_THROW(b.sum().backward(), InvalidArgument);
  });
}

TEST(ZeroOptimizer, ABackwardThatThrewCanBeRepeated) {
  testing::run_threads(2, [](Communicator& comm) {
    for (const int stage : {0, 1, 2, 3}) {
      const auto a = leaf(64), b = leaf(64), same_a = leaf(64), same_b = leaf(64);
      // Each parameter has its own bucket: b's is being reduced when the backward throws before
      // a's.
      ZeroOptimizer optimizer(comm, {{"a", a}, {"b", b}}, SGDOptions(0.1),
                              {.stage = stage, .bucket_sizes = kSmallBuckets});
      ZeroOptimizer same(comm, {{"a", same_a}, {"b", same_b}}, SGDOptions(0.1),
                         {.stage = stage, .bucket_sizes = kSmallBuckets});
      const auto backward = [&](const at::Tensor& first, const at::Tensor& second, bool throws) {
        const at::Tensor middle = first * (2.0 + comm.rank());
        if (throws) {
          middle.register_hook(
              [](const at::Tensor&) -> void { throw std::runtime_error("no data"); });
        }
        (middle * second).sum().backward();
      };
      for (int step = 0; step < 3; ++step) {
        if (step != 1) {
          EXPECT_THROW(backward(a, b, true), std::runtime_error);
          optimizer.zero_grad();
        }
        backward(a, b, false);
        optimizer.step();
        backward(same_a, same_b, false);
        same.step();
        EXPECT_TRUE(a.equal(same_a) && b.equal(same_b)) << "stage " << stage << ", step " << step;
      }
    }
  });
}

// More buckets than are reduced at once: the number that a rank has started by then depends on
// timing.
TEST(ZeroOptimizer, ABackwardThatThrewIsEndedAlikeOnRanksThatAreNot) {
  for (const int stage : {1, 2}) {
    testing::run_threads(2, [stage](Communicator& comm) {
      constexpr int kLayers = 9;
      NamedTensors mine, theirs;
      for (int i = 0; i < kLayers; ++i) {
        mine.emplace_back("p" + std::to_string(i), leaf(64));
        theirs.emplace_back("p" + std::to_string(i), leaf(64));
      }
      const ZeroOptions options{.stage = stage, .bucket_sizes = kSmallBuckets};
      ZeroOptimizer optimizer(comm, mine, SGDOptions(0.1), options);
      ZeroOptimizer same(comm, theirs, SGDOptions(0.1), options);
      ASSERT_GE(optimizer.bucket_count(), 6U);
      const auto backward = [&](const NamedTensors& parameters, bool throws) {
        at::Tensor value = torch::ones({64}, parameters[0].second.options().requires_grad(false));
        for (int i = 0; i < kLayers; ++i) {
          value = value * parameters[static_cast<size_t>(i)].second * (1.0 + 0.1 * comm.rank());
          if (i == 0 && throws) {
            value.register_hook(
                [](const at::Tensor&) -> void { throw std::runtime_error("no data"); });
          }
        }
        value.sum().backward();
      };
      for (int step = 0; step < 5; ++step) {
        if (comm.rank() == step % 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_THROW(backward(mine, true), std::runtime_error);
        if (step == 2 && stage == 1) {
          EXPECT_THAT(message_of<InvalidArgument>([&] { backward(mine, false); }),
                      HasSubstr("call zero_grad()"));
        }
        if (stage == 1) optimizer.zero_grad();
        backward(mine, false);
        optimizer.step();
        backward(theirs, false);
        same.step();
        for (int i = 0; i < kLayers; ++i) {
          EXPECT_TRUE(
              mine[static_cast<size_t>(i)].second.equal(theirs[static_cast<size_t>(i)].second))
              << step << " " << i;
        }
      }
    });
  }
}

// A backward from the product of two leaves, which may throw between them.
void backward_through(const at::Tensor& a, const at::Tensor& b, bool throws) {
  const at::Tensor middle = a * 2.0;
  if (throws)
    middle.register_hook([](const at::Tensor&) -> void { throw std::runtime_error("no data"); });
  (middle * b).sum().backward();
}

// In stages 2 and 3 the gradients before it are lost, too, and the error says so.
TEST(ZeroOptimizer, ABackwardThatThrewTakesTheStepsGradientsWithIt) {
  for (const bool accumulate : {false, true}) {
    testing::run_threads(2, [accumulate](Communicator& comm) {
      const auto a = leaf(64), b = leaf(64);
      ZeroOptimizer optimizer(
          comm, {{"a", a}, {"b", b}}, SGDOptions(0.1),
          {.stage = 3, .accumulate = accumulate, .bucket_sizes = kSmallBuckets});
      const auto backward = [&](bool throws) { backward_through(a, b, throws); };
      const auto first = [&] {
        if (accumulate) return backward(false);
        const auto quiet = optimizer.no_sync();
        backward(false);
      };
      for (const bool left_out : {false, true}) {
        first();
        EXPECT_THROW(backward(true), std::runtime_error);
        if (left_out)
          optimizer.leave_out();
        else
          EXPECT_THAT(message_of<InvalidArgument>([&] { backward(false); }),
                      HasSubstr("begin the step again"));
        optimizer.zero_grad();
        const auto before = copies_of({a, b});
        comm.barrier();
        first();
        backward(false);
        optimizer.step();
        // Exactly twice each gradient.
        EXPECT_TRUE(a.allclose(before[0] - 0.1 * 4 * before[1]));
        EXPECT_TRUE(b.allclose(before[1] - 0.1 * 4 * before[0]));
      }
    });
  }
}

// leave_out() after a backward that threw in the second round: a rank's progress depends on timing,
// the ranks' common reaction does not.
TEST(ZeroOptimizer, AStepIsLeftOutAlikeOnRanksThatAreNot) {
  testing::run_threads(2, [](Communicator& comm) {
    constexpr int kLayers = 9;
    NamedTensors parameters;
    for (int i = 0; i < kLayers; ++i) parameters.emplace_back("p" + std::to_string(i), leaf(64));
    ZeroOptimizer optimizer(comm, parameters, SGDOptions(0.1),
                            {.stage = 3, .accumulate = true, .bucket_sizes = kSmallBuckets});
    ASSERT_GE(optimizer.bucket_count(), 6U);
    const auto backward = [&](bool throws) {
      at::Tensor value = parameters[0].second * 1.0;
      if (throws)
        value.register_hook([](const at::Tensor&) -> void { throw std::runtime_error("no data"); });
      for (int i = 1; i < kLayers; ++i) value = value * parameters[static_cast<size_t>(i)].second;
      value.sum().backward();
    };
    for (int step = 0; step < 6; ++step) {
      backward(false);
      if (comm.rank() == step % 2) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      EXPECT_THROW(backward(true), std::runtime_error);
      optimizer.leave_out();
      const auto before = copies_of({parameters[0].second});
      comm.barrier();
      backward(false);
      optimizer.step();
      EXPECT_FALSE(same_bits({parameters[0].second}, before));
      comm.barrier();
    }
  });
}

// The values that it has added under no_sync() cannot be separated from the earlier ones.
TEST(ZeroOptimizer, AQuietBackwardThatThrewIsNamed) {
  for (const int stage : {1, 3}) {
    testing::run_threads(2, [stage](Communicator& comm) {
      const auto a = leaf(64), b = leaf(64);
      ZeroOptimizer optimizer(comm, {{"a", a}, {"b", b}}, SGDOptions(0.1),
                              {.stage = stage, .bucket_sizes = kSmallBuckets});
      const auto backward = [&](bool throws) { backward_through(a, b, throws); };
      {
        const auto quiet = optimizer.no_sync();
        backward(false);
        EXPECT_THROW(backward(true), std::runtime_error);
      }
      EXPECT_THROW(backward(false), InvalidArgument);
      optimizer.zero_grad();
      backward(false);
      optimizer.step();
    });
  }
}

TEST(ZeroOptimizer, StartsFromRankZerosParameters) {
  testing::run_threads(3, [](Communicator& comm) {
    const auto a = leaf(5);
    {
      const at::NoGradGuard no_grad;
      a.mul_(comm.rank() + 7);
    }
    const ZeroOptimizer optimizer(comm, {{"a", a}}, SGDOptions(1));
    EXPECT_TRUE(a.detach().eq(7).all().item<bool>());
  });
}

TEST(ZeroOptimizer, WhatItCannotTrainIsNamed) {
  testing::run_threads(1, [](Communicator& comm) {
    const auto refusal = [&](const NamedTensors& parameters) {
      return message_of<InvalidArgument>([&] { ZeroOptimizer(comm, parameters, SGDOptions(1)); });
    };
    const auto a = leaf(4);
    EXPECT_THAT(refusal({}), HasSubstr("no parameter"));
    EXPECT_THAT(refusal({{"ice", torch::ones({2})}}), HasSubstr("'ice' is frozen"));
    EXPECT_THAT(refusal({{"a", a}, {"again", a}}), HasSubstr("'a' and 'again' share memory"));
    EXPECT_THAT(refusal({{"sum", a.sum()}}), HasSubstr("'sum' is the result of a computation"));
    EXPECT_THAT(refusal({{"n", torch::ones({2}, at::kLong)}}), HasSubstr("not floating-point"));
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{a}, std::make_unique<AdamOptions>(1));
    EXPECT_THAT(
        message_of<InvalidArgument>([&] { ZeroOptimizer(comm, groups, {}, SGDOptions(1)); }),
        HasSubstr("options of group 0"));
    ZeroOptimizer optimizer(comm, {{"a", a}}, SGDOptions(1));
    a.sum().backward();
    EXPECT_THROW(optimizer.step({.max_norm = 0.0}), InvalidArgument);
    a.set_data(torch::ones({4}, at::kDouble));
    a.sum().backward();
    EXPECT_THAT(message_of<InvalidArgument>([&] { optimizer.step(); }),
                HasSubstr("'a' has been moved"));
  });
}

TEST(ZeroOptimizer, RanksWithDifferentModelsGetMismatch) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto a = leaf(comm.rank() == 0 ? 4 : 5);
    EXPECT_THROW(ZeroOptimizer(comm, {{"a", a}}, SGDOptions(1)), Mismatch);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::zero_test
