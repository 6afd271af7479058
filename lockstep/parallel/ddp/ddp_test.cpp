#include "lockstep/parallel/ddp/ddp.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <mutex>
#include <optional>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/parallel/ddp/average_parameters.h"
#include "lockstep/parallel/ddp/ddp_test_support.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::ddp_test {
namespace {

using namespace ddp_test_support;
using torch::nn::Linear;

std::vector<torch::Tensor> gradients(Net& net) {
  std::vector<torch::Tensor> result;
  for (auto& p : net->parameters()) result.push_back(p.grad());
  return result;
}

TEST(Ddp, GradientsAreThoseOfOneProcessOnTheWholeBatch) {
  for (const int ranks : {1, 2, 3, 4}) {
    Net one = reference(12);
    std::mutex mutex;
    testing::run_threads(ranks, [&](Communicator& comm) {
      // Small buckets, and different weights on the other ranks: rank 0's are used.
      DistributedDataParallel model(make_net(comm.rank() + 1.0), comm,
                                    {.bucket_sizes = {.first = 64, .rest = 128}});
      EXPECT_EQ(model.bucket_count(), 0u);
      const auto mine = batch(12).chunk(ranks)[comm.rank()];
      model(mine).pow(2).mean().backward();
      EXPECT_GT(model.bucket_count(), 2u);
      const std::lock_guard lock(mutex);
      const auto expected = gradients(one);
      const auto got = gradients(model.module());
      for (size_t i = 0; i < got.size(); ++i)
        expect_close(got[i], expected[i],
                     "ranks " + std::to_string(ranks) + " gradient " + std::to_string(i));
    });
  }
}

// One child wrapped, one replaced and one frozen: the ranks train the same as one process.
TEST(Ddp, HookedModelsAreThoseOfOneProcess) {
  const auto make = [] {
    Net net = make_net();
    wrap_forward(*net, "first", [](const Forward& forward, const torch::Tensor& x) {
      return forward(x) - 0.5 * forward(x * 2);
    });
    Linear other(8, 4);
    {
      const torch::NoGradGuard no_grad;
      other->weight.copy_(torch::linspace(-1, 1, 32).view({4, 8}));
      other->bias.fill_(0.25);
    }
    replace_child(*net, "second", other, {.release_memory = true});
    freeze_child(*net, "spare");
    return net;
  };
  const auto train = [](auto& model, Net& net, const torch::Tensor& mine) {
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      (model(mine, true) - 1).pow(2).mean().backward();
      optimizer.step();
    }
  };
  Net one = make();
  const auto start = one->named_parameters();
  train(one, one, batch(12));
  EXPECT_FALSE(start["spare.weight"].grad().defined());
  for (const int ranks : {2, 3}) {
    std::mutex mutex;
    testing::run_threads(ranks, [&](Communicator& comm) {
      DistributedDataParallel model(make(), comm, {.bucket_sizes = {.first = 64, .rest = 128}});
      train(model, model.module(), batch(12).chunk(ranks)[comm.rank()]);
      const std::lock_guard lock(mutex);
      for (const auto& item : model.module()->named_parameters())
        expect_close(item.value(), one->named_parameters()[item.key()], item.key());
    });
  }
}

TEST(Ddp, TrainingFollowsOneProcessForFiftySteps) {
  const auto train = [](auto& model, auto& net,
                        const std::function<torch::Tensor(torch::Tensor)>& mine, int zero) {
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
    std::vector<double> losses;
    for (int step = 0; step < 50; ++step) {
      if (zero == 0) optimizer.zero_grad();
      if (zero == 1) optimizer.zero_grad(false);
      auto loss = (model(mine(batch(12)), true) - 1).pow(2).mean();
      if (zero == 2) optimizer.zero_grad();  // after forward
      loss.backward();
      optimizer.step();
      losses.push_back(loss.template item<double>());
    }
    return losses;
  };
  for (const int zero : {0, 1, 2}) {
    Net one = make_net();
    const auto expected = train(one, one, [](torch::Tensor t) { return t; }, zero);
    EXPECT_LT(expected.back(), expected.front() / 2);
    for (const int ranks : {2, 4}) {
      std::mutex mutex;
      std::vector<double> sums(50, 0.0);
      testing::run_threads(ranks, [&](Communicator& comm) {
        DistributedDataParallel model(make_net(), comm);
        const auto losses = train(
            model, model.module(), [&](torch::Tensor t) { return t.chunk(ranks)[comm.rank()]; },
            zero);
        const std::lock_guard lock(mutex);
        for (size_t i = 0; i < losses.size(); ++i) sums[i] += losses[i] / ranks;
      });
      for (size_t i = 0; i < sums.size(); ++i)
        EXPECT_NEAR(sums[i], expected[i], 1e-5 * expected[i]) << "step " << i << " ranks " << ranks;
    }
  }
}

TEST(Ddp, UnusedParametersKeepUndefinedGradientsUnlessAnotherRankUsedThem) {
  testing::run_threads(2, [](Communicator& comm) {
    DistributedDataParallel model(make_net(), comm);
    model(batch(4)).sum().backward();
    EXPECT_FALSE(model->spare->weight.grad().defined()) << "nobody used it";
    // Now rank 1 alone uses it: both get half of its gradient.
    for (auto& p : model->parameters()) p.mutable_grad() = torch::Tensor();
    model(batch(4), comm.rank() == 1).sum().backward();
    ASSERT_TRUE(model->spare->weight.grad().defined());
    Net one = make_net();
    one(batch(4), true).sum().backward();
    EXPECT_TRUE(torch::allclose(model->spare->weight.grad(), one->spare->weight.grad() / 2));
    // No rank used it, but it has an earlier gradient, which stays as it was.
    const auto before = model->spare->weight.grad().clone();
    model(batch(4)).sum().backward();
    EXPECT_TRUE(model->spare->weight.grad().equal(before));
  });
}

TEST(Ddp, ParametersThatNobodyUsedFollowThePolicy) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto backward = [&](auto& model, bool use_spare) {
      model(batch(4).chunk(2)[comm.rank()], use_spare).pow(2).mean().backward();
    };
    DistributedDataParallel zero(make_net(), comm, {.unused = Unused::kZero});
    backward(zero, false);
    EXPECT_TRUE(torch::equal(zero->spare->weight.grad(), torch::zeros({4, 4})));
    backward(zero, true);
    const auto before = zero->spare->weight.grad().clone();
    EXPECT_GT(before.abs().max().item<double>(), 0);
    backward(zero, false);
    EXPECT_TRUE(torch::equal(zero->spare->weight.grad(), before));

    DistributedDataParallel strict(make_net(), comm, {.unused = Unused::kThrow});
    backward(strict, true);
    backward(strict, comm.rank() == 1);  // one rank is enough
    for (auto& p : strict->parameters()) p.mutable_grad() = torch::Tensor();
    try {
      backward(strict, false);
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("'spare.weight', 'spare.bias'"), std::string::npos)
          << error.what();
    }
    Net one = reference(4);
    expect_close(strict->first->weight.grad(), one->first->weight.grad(), "the others");
    backward(strict, true);
  });
}

TEST(Ddp, GradientsAreViewsOfFlatBuckets) {
  testing::run_threads(2, [](Communicator& comm) {
    DistributedDataParallel model(make_net(), comm);
    model(batch(4), true).sum().backward();
    const auto grads = gradients(model.module());
    for (const auto& g : grads) EXPECT_TRUE(g.is_alias_of(grads[0]));
    EXPECT_EQ(model.bucket_count(), 1u);
  });
}

TEST(Ddp, ForwardsWithoutBackwardAreFree) {
  testing::run_threads(2, [](Communicator& comm) {
    DistributedDataParallel model(make_net(), comm, {.buffers = Buffers::kOwn});
    for (int i = 0; i < comm.rank() * 3; ++i) {  // not counted, so ranks may differ
      const at::NoGradGuard no_grad;
      model(batch(2));
    }
    model.module()->eval();
    for (int i = 0; i < comm.rank() * 2; ++i) model(batch(2));
    model.module()->train();
    model(batch(2));                                                  // counted, on all ranks
    auto loss = model(batch(4)).sum() + model(batch(6), true).sum();  // two forwards, one backward
    loss.backward();
    Net one = make_net();
    (one(batch(4)).sum() + one(batch(6), true).sum()).backward();
    const auto got = gradients(model.module()), expected = gradients(one);
    for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], expected[i], std::to_string(i));
  });
}

// All later calls look alike, except for the count of forwards in their notes.
TEST(Ddp, ASkippedBackwardIsNamedAtTheNextOne) {
  testing::run_threads(2, [](Communicator& comm) {
    DistributedDataParallel model(make_net(), comm, {.buffers = Buffers::kOwn});
    try {
      for (int step = 1; step <= 3; ++step) {
        auto loss = model(batch(4)).sum();
        if (comm.rank() == 1 && step == 2) continue;
        loss.backward();
      }
      ADD_FAILURE() << "no error";
    } catch (const Mismatch& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("bucket 0 of forward 2, reducer"), std::string::npos) << text;
      EXPECT_NE(text.find("bucket 0 of forward 3, reducer"), std::string::npos) << text;
    }
  });
}

// Recomputes a layer inside backward (activation checkpointing): its parameters' gradients come in
// a nested backward.
struct Recompute : torch::autograd::Function<Recompute> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& x,
                               Linear layer) {
    ctx->saved_data["layer"] = reinterpret_cast<int64_t>(new Linear(layer));
    ctx->save_for_backward({x});
    const at::AutoGradMode off(false);
    return layer(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const std::unique_ptr<Linear> layer(
        reinterpret_cast<Linear*>(ctx->saved_data["layer"].toInt()));
    const at::AutoGradMode on(true);
    auto x = ctx->get_saved_variables()[0].detach().requires_grad_(true);
    torch::autograd::backward({(*layer)(x)}, {grads[0]});
    return {x.grad(), torch::Tensor()};
  }
};

struct CheckpointedImpl : torch::nn::Module {
  CheckpointedImpl() {
    inner = register_module("inner", Linear(6, 6));
    middle = register_module("middle", Linear(6, 6));
    outer = register_module("outer", Linear(6, 2));
  }
  std::tuple<torch::Tensor, std::vector<torch::Tensor>> forward(const torch::Tensor& x,
                                                                bool recompute) {
    auto y = inner(x);
    y = recompute ? Recompute::apply(y, middle) : middle(y);
    return {outer(torch::tanh(y)), {y}};
  }
  Linear inner{nullptr}, middle{nullptr}, outer{nullptr};
};

// The gradients of one process after the same micro-batches of all ranks; `spare`: the micro-step
// in which rank 1's part uses the spare layer.
std::vector<torch::Tensor> accumulated_by_one_process(int micros, int spare) {
  Net one = make_net();
  for (int micro = 0; micro < micros; ++micro) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto part = batch(4 * micros).chunk(micros)[micro].chunk(2)[rank];
      (one(part, rank == 1 && micro == spare).pow(2).mean() / 2).backward();
    }
  }
  return gradients(one);
}

TEST(Ddp, AccumulatesWithoutCommunicating) {
  constexpr int kMicros = 3;
  // Only one rank uses the spare layer, in the first or the last micro-step.
  for (const int spare : {-1, 0, 2}) {
    const auto expected = accumulated_by_one_process(kMicros, spare);
    for (const bool counted : {false, true}) {
      testing::run_threads(2, [&](Communicator& comm) {
        DistributedDataParallel model(make_net(), comm,
                                      {.bucket_sizes = {.first = 64, .rest = 128}});
        torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
        if (counted) model.accumulate(kMicros);
        for (int round = 0; round < 2; ++round) {  // the second one equals the first
          optimizer.zero_grad(round == 0);
          for (int micro = 0; micro < kMicros; ++micro) {
            const bool last = micro + 1 == kMicros;
            const auto before = model.comm().stats().collectives;
            std::optional<NoSync> guard;
            if (!counted && !last) guard.emplace(model.no_sync());
            EXPECT_EQ(model.communicates(), last);
            const auto part = batch(4 * kMicros).chunk(kMicros)[micro].chunk(2)[comm.rank()];
            model(part, comm.rank() == 1 && micro == spare).pow(2).mean().backward();
            EXPECT_EQ(model.comm().stats().collectives > before, last);
          }
          const auto got = gradients(model.module());
          for (size_t i = 0; i < got.size(); ++i) {
            // Gradients that were set to zero instead of none stay defined.
            if (round == 1 && !expected[i].defined()) continue;
            expect_close(got[i], expected[i],
                         "spare in " + std::to_string(spare) + ", gradient " + std::to_string(i));
          }
        }
      });
    }
  }
}

TEST(Ddp, AGroupOfMicroStepsMayBeShorterAndMayFail) {
  testing::run_threads(2, [](Communicator& comm) {
    DistributedDataParallel model(make_net(), comm);
    const auto part = batch(4).chunk(2)[comm.rank()];
    model.accumulate(4);
    model(part).pow(2).mean().backward();
    model.accumulate(1);
    EXPECT_TRUE(model.communicates());
    model(part).pow(2).mean().backward();
    EXPECT_THROW(model.accumulate(0), InvalidArgument);
    for (auto& p : model->parameters()) p.mutable_grad() = torch::Tensor();
    {
      const auto outer = model.no_sync();
      const auto inner = model.no_sync();
      auto y = model(part);
      y.register_hook([](const torch::Tensor&) -> torch::Tensor { throw DataError("mine"); });
      EXPECT_THROW(y.pow(2).mean().backward(), std::exception);
    }
    for (auto& p : model->parameters()) p.mutable_grad() = torch::Tensor();
    model(part).pow(2).mean().backward();
    Net one = reference(4);
    for (size_t i = 0; i < 4; ++i)
      expect_close(gradients(model.module())[i], gradients(one)[i], "after a failure");
  });
}

TEST(Ddp, NestedBackwardsAndStructuredOutputsAreReducedOnce) {
  const auto make = [] {
    torch::manual_seed(7);
    return std::make_shared<CheckpointedImpl>();
  };
  auto one = make();
  std::get<0>(one->forward(batch(8), false)).pow(2).mean().backward();
  std::mutex mutex;
  testing::run_threads(2, [&](Communicator& comm) {
    std::shared_ptr<CheckpointedImpl> net;
    {
      const std::lock_guard lock(mutex);  // one generator for all threads
      net = make();
    }
    DistributedDataParallel model(net, comm, {.bucket_sizes = {.first = 1, .rest = 1}});
    for (int step = 0; step < 2; ++step) {
      for (auto& p : model->parameters()) p.mutable_grad() = torch::Tensor();
      const auto [output, extra] = model(batch(8).chunk(2)[comm.rank()], true);
      output.pow(2).mean().backward();
      const auto got = net->parameters(), expected = one->parameters();
      for (size_t i = 0; i < got.size(); ++i)
        expect_close(got[i].grad(), expected[i].grad(), std::to_string(i));
    }
  });
}

TEST(Ddp, AnExceptionInBackwardLeavesAUsableModel) {
  testing::run_threads(2, [](Communicator& comm) {
    Net net = make_net();
    DistributedDataParallel model(net, comm);
    auto y = model(batch(4));
    y.register_hook([](const torch::Tensor& g) -> torch::Tensor {
      if (g.defined()) throw std::runtime_error("boom");
      return g;
    });
    EXPECT_THROW(y.sum().backward(), std::runtime_error);
    net->zero_grad();
    model(batch(4)).sum().backward();
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

TEST(Ddp, GradientsGoOnWithoutTheWrapper) {
  testing::run_threads(1, [](Communicator& comm) {
    Net net = make_net();
    {
      DistributedDataParallel model(net, comm);
    }
    net(batch(4)).sum().backward();
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

TEST(Ddp, DifferentModelsAreNamed) {
  try {
    testing::run_threads(3, [](Communicator& comm) {
      auto net = torch::nn::Sequential(Linear(4, comm.rank() == 2 ? 5 : 4), Linear(4, 4));
      DistributedDataParallel model(net, comm);
    });
    FAIL() << "no Mismatch";
  } catch (const Mismatch& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("0.weight float32 [4, 4] on rank 0"), std::string::npos) << text;
    EXPECT_NE(text.find("0.weight float32 [5, 4] on rank 2"), std::string::npos) << text;
  }
}

TEST(Ddp, BuffersFollowRankZero) {
  testing::run_threads(2, [](Communicator& comm) {
    DistributedDataParallel model(make_net(), comm);
    model->steps.fill_(comm.rank() + 5.0);
    model(batch(2));
    EXPECT_EQ(model->steps.item<float>(), 5.0f);
  });
}

// Gradients in 16 bits equal those of one process, except for the rounding of each rank's and of
// the average; and they are the same on all ranks.
TEST(Ddp, SixteenBitHooksRoundAndNothingElse) {
  for (const auto& [dtype, error] :
       {std::pair{torch::kBFloat16, std::ldexp(1.0, -8)}, {torch::kHalf, std::ldexp(1.0, -11)}}) {
    Net one = reference(12);
    testing::run_threads(3, [&](Communicator& comm) {
      DistributedDataParallel model(
          make_net(), comm,
          {.bucket_sizes = {.first = 64, .rest = 128}, .hook = make_16_bit_hook(dtype)});
      for (int round = 0; round < 2; ++round) {
        for (auto& p : model->parameters()) p.mutable_grad() = torch::Tensor();
        model(batch(12).chunk(3)[comm.rank()]).pow(2).mean().backward();
        const auto got = gradients(model.module()), expected = gradients(one);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
          if (!got[i].defined()) continue;
          // Ranks' gradients may be larger than their average: bound by the largest.
          const double bound = 4 * error * expected[i].abs().max().item<double>() + 1e-6;
          EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), bound) << i;
          const auto all = comm.all_gather(got[i].contiguous().view({1, -1}));
          EXPECT_TRUE(all.eq(all[0]).all().item<bool>()) << i;
        }
      }
    });
  }
  EXPECT_THROW(make_16_bit_hook(torch::kFloat), InvalidArgument);
}

// A user's own hook: it sums instead of averaging, and checks its input.
class SumHook final : public CommHook {
 public:
  void prepare(Communicator&, std::span<const GradBucket> buckets) override {
    buckets_ = buckets.size();
  }
  Work start(Communicator& comm, const GradBucket& bucket, const CallNote& note) override {
    int64_t elements = 0;
    for (const auto& gradient : bucket.gradients) {
      EXPECT_TRUE(gradient.is_alias_of(bucket.flat));
      elements += gradient.numel();
    }
    EXPECT_LE(elements, bucket.flat.numel());  // padded
    EXPECT_EQ(bucket.index, started_++ % buckets_);
    return comm.iall_reduce(bucket.flat, ReduceOp::kSum, note);
  }
  void finish(Communicator&, const GradBucket& bucket, const CallNote&) override {
    bucket.flat.mul_(10);
  }

 private:
  size_t buckets_ = 0;
  size_t started_ = 0;
};

TEST(Ddp, AUsersHookDecidesWhatTheOptimizerSees) {
  Net one = reference(12);
  testing::run_threads(2, [&](Communicator& comm) {
    DistributedDataParallel model(
        make_net(), comm,
        {.bucket_sizes = {.first = 64, .rest = 128}, .hook = std::make_shared<SumHook>()});
    {
      const auto guard = model.no_sync();
      model(batch(12).chunk(2)[comm.rank()]).pow(2).mean().backward();
    }
    model(batch(12).chunk(2)[comm.rank()]).pow(2).mean().backward();
    const auto got = gradients(model.module()), expected = gradients(one);
    for (size_t i = 0; i < 4; ++i)
      expect_close(got[i], expected[i] * 2 * 2 * 10, std::to_string(i));  // ranks, micro-steps
  });
}

TEST(Ddp, ParametersThatDriftApartAreNamed) {
  testing::run_threads(3, [](Communicator& comm) {
    DistributedDataParallel model(make_net(), comm, {.check_every = 2});
    const auto forward = [&] { model(batch(4)); };
    for (int i = 0; i < 4; ++i) forward();
    if (comm.rank() == 2) {
      const torch::NoGradGuard no_grad;
      model->second->bias[3] += 1e-6;
    }
    forward();  // not checked
    try {
      forward();
      ADD_FAILURE() << "no Mismatch";
    } catch (const Mismatch& error) {
      EXPECT_NE(std::string(error.what()).find("'second.bias' of rank 2 (on "), std::string::npos)
          << error.what();
    }
  });
}

TEST(AverageParameters, IsTheAverageAndKeepsGradients) {
  testing::run_threads(3, [](Communicator& comm) {
    Net net = make_net(comm.rank() + 1.0);
    Net first = make_net(1), second = make_net(2), third = make_net(3);
    net(batch(4)).sum().backward();
    const auto before = net->first->weight.grad().clone();
    average_parameters(net, comm);
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const auto expected =
          (first->parameters()[i] + second->parameters()[i] + third->parameters()[i]) / 3.0;
      expect_close(net->parameters()[i], expected, std::to_string(i));
    }
    EXPECT_TRUE(torch::equal(net->first->weight.grad(), before));
    EXPECT_TRUE(net->first->weight.requires_grad());
  });
}

// With plain SGD, a step by own gradients and an average of parameters equals a step by averaged
// gradients.
TEST(AverageParameters, AtEveryStepOfPlainSgdEqualsDdp) {
  testing::run_threads(2, [](Communicator& comm) {
    Net local = make_net();
    DistributedDataParallel model(make_net(), comm);
    torch::optim::SGD mine(local->parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD theirs(model->parameters(), torch::optim::SGDOptions(0.1));
    PeriodicAverager averager(comm, 1);
    for (int step = 0; step < 5; ++step) {
      const auto part = batch(8).chunk(2)[comm.rank()];
      mine.zero_grad();
      local(part).pow(2).mean().backward();
      mine.step();
      EXPECT_TRUE(averager.step(local));
      theirs.zero_grad();
      model(part).pow(2).mean().backward();
      theirs.step();
    }
    for (size_t i = 0; i < local->parameters().size(); ++i)
      expect_close(local->parameters()[i], model->parameters()[i], std::to_string(i));
  });
}

TEST(AverageParameters, EveryPeriodAfterTheWarmUp) {
  testing::run_threads(2, [](Communicator& comm) {
    Net net = make_net();
    PeriodicAverager averager(comm, 3, 2);
    std::string averaged;
    for (int step = 0; step < 9; ++step) averaged += averager.step(net) ? 'a' : '.';
    EXPECT_EQ(averaged, "aa..a..a.");
    EXPECT_THROW(PeriodicAverager(comm, 0), InvalidArgument);
  });
}

TEST(AverageGradients, EqualsDdpWithEveryAllReduce) {
  for (const auto algorithm : {algorithms::AllReduce::kEngine, algorithms::AllReduce::kRing,
                               algorithms::AllReduce::kNaiveRing}) {
    Net one = reference(12);
    for (const int ranks : {3, 4}) {
      testing::run_threads(ranks, [&](Communicator& comm) {
        Net net = make_net();
        net(batch(12).chunk(ranks)[comm.rank()]).pow(2).mean().backward();
        average_gradients(net, comm, {.algorithm = algorithm});
        const auto got = gradients(net), expected = gradients(one);
        for (size_t i = 0; i < got.size(); ++i)
          expect_close(got[i], expected[i], std::to_string(i));
        EXPECT_FALSE(net->spare->weight.grad().defined());
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::inline v0::ddp_test
