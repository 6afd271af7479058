#include "lockstep/parallel/logical/logical_ranks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::logical_ranks_test {
namespace {

using ::testing::HasSubstr;

// Convolution, statistics, dropout, a parameter that only some batches use, and one that none uses.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(2, 6, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    out = register_module("out", torch::nn::Linear(6 * 36, 5));
    rare = register_parameter("rare", torch::ones({5}));
    never = register_parameter("never", torch::ones({3}));
    seen = register_buffer("seen", torch::ones({}));
  }
  at::Tensor forward(const at::Tensor& x, bool with_rare) {
    at::Tensor y = out(dropout(norm(conv(x * seen.clone())).relu().flatten(1)));
    // A batch sees the values that batches of earlier steps left.
    seen.mul_(0.9).add_(x.mean(), 0.5);
    return with_rare ? y * rare : y;
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear out{nullptr};
  at::Tensor rare, never, seen;
};
TORCH_MODULE(Net);

at::Tensor batch_of(int64_t step, int64_t rank) {
  return at::arange(4 * 2 * 64, at::kFloat)
      .add_(static_cast<double>(step * 31 + rank * 7))
      .sin_()
      .view({4, 2, 8, 8});
}

struct Ended {
  std::vector<at::Tensor> tensors;  // parameters and buffers
  at::Tensor streams;
};

// Some steps of 8 logical ranks; optionally continued from `from` by a new job, which knows only
// what a checkpoint has.
Ended train(int ranks, int steps, const Ended* from = nullptr, int first_step = 0) {
  constexpr int kLogical = 8;
  Ended ended;
  testing::run_threads(ranks, [&](Communicator& comm) {
    at::set_num_threads(1);
    torch::manual_seed(5);  // the process's generator, which ranks that are threads share
    comm.barrier();
    Net net;
    {
      const at::NoGradGuard no_grad;
      for (const auto& p : net->parameters())
        p.copy_(at::arange(p.numel(), at::kFloat).add_(3).cos_().mul_(0.3).view(p.sizes()));
    }
    LogicalRanks logical(comm, net.ptr(), kLogical);
    if (from != nullptr) {
      const at::NoGradGuard no_grad;
      size_t next = 0;
      for (const auto& p : net->parameters()) p.copy_(from->tensors[next++]);
      for (const auto& b : net->buffers()) b.copy_(from->tensors[next++]);
      logical.set_random_states(from->streams, "test");
    } else {
      // The streams' seeds are drawn from a generator that threads share.
      at::Tensor states = logical.random_states();
      for (int64_t i = 0; i < logical.own(); ++i) {
        at::Generator seeded =
            at::detail::createCPUGenerator(static_cast<uint64_t>(100 + logical.first() + i));
        states[i].copy_(seeded.get_state());
      }
      logical.set_random_states(comm.all_gather(states), "test");
    }
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05));
    for (int step = first_step; step < first_step + steps; ++step) {
      optimizer.zero_grad();
      for (int64_t i = 0; i < logical.own(); ++i) {
        const int64_t rank = logical.first() + i;
        const at::Tensor out = logical.forward([&] {
          return std::vector<at::Tensor>{net->forward(batch_of(step, rank), rank % 3 == 0)};
        })[0];
        logical.backward(out.square().mean());
      }
      logical.synchronize();
      optimizer.step();
    }
    const at::Tensor streams = comm.all_gather(logical.random_states());
    if (comm.rank() != 0) return;
    for (const auto& p : net->parameters()) ended.tensors.push_back(p.detach().clone());
    for (const auto& b : net->buffers()) ended.tensors.push_back(b.clone());
    ended.streams = streams;
  });
  return ended;
}

void expect_same(const Ended& a, const Ended& b, const char* what, int ranks) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i)
    EXPECT_TRUE(a.tensors[i].equal(b.tensors[i]))
        << what << ", " << ranks << " ranks, tensor " << i;
  EXPECT_TRUE(a.streams.equal(b.streams)) << what << ", " << ranks << " ranks";
}

TEST(LogicalRanks, AnyNumberOfRanksEndsInTheSameBits) {
  const Ended one = train(1, 6);
  EXPECT_FALSE(one.tensors[0].equal(train(1, 5).tensors[0])) << "nothing was trained";
  for (const int ranks : {2, 4, 8}) expect_same(train(ranks, 6), one, "whole", ranks);
}

TEST(LogicalRanks, OtherRanksGoOnInTheSameBits) {
  const Ended whole = train(1, 6);
  for (const auto& [before, after] : {std::pair(4, 1), {1, 8}, {8, 2}, {2, 4}}) {
    const Ended half = train(before, 3);
    expect_same(train(after, 3, &half, 3), whole, "resumed", after);
  }
}

// A single batch of all samples, if nothing is random and nothing belongs to a batch.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    first = register_module("first", torch::nn::Linear(6, 6));
    const at::NoGradGuard no_grad;
    first->weight.copy_(at::linspace(-1, 1, 36).view({6, 6}));
    first->bias.zero_();
    again = register_parameter("again", first->weight);  // one parameter, two names
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(first(x), again); }
  torch::nn::Linear first{nullptr};
  at::Tensor again;
};
TORCH_MODULE(Tied);

TEST(LogicalRanks, IsTheMeanOfAllBatches) {
  Tied whole, shared;
  const at::Tensor x = at::linspace(-2, 2, 96).sin().view({16, 6});
  whole(x).square().mean().backward();
  testing::run_threads(1, [&](Communicator& comm) {
    LogicalRanks logical(comm, shared.ptr(), 4);
    for (int step = 0; step < 3; ++step) {  // without zero_grad()
      for (int i = 0; i < 4; ++i) {
        const at::Tensor part = x.narrow(0, 4 * i, 4);
        logical.backward(logical.forward([&] { return std::vector<at::Tensor>{shared(part)}; })[0]
                             .square()
                             .mean());
      }
      logical.synchronize();
    }
  });
  EXPECT_TRUE(at::allclose(shared->again.grad(), whole->again.grad(), 1e-5, 1e-7));
  EXPECT_TRUE(at::allclose(shared->first->bias.grad(), whole->first->bias.grad(), 1e-5, 1e-7));
}

// A failed step leaves nothing: the next one is the same as without it.
TEST(LogicalRanks, AStepThatIsLeftOutNeverWas) {
  testing::run_threads(1, [](Communicator& comm) {
    Net net;
    LogicalRanks logical(comm, net.ptr(), 2);
    const at::Tensor streams = logical.random_states();
    const at::Tensor mean = net->norm->running_mean.clone(), seen = net->seen.clone();
    const auto run = [&] {
      logical.backward(logical
                           .forward([&] {
                             return std::vector<at::Tensor>{net->forward(batch_of(0, 1), true)};
                           })[0]
                           .sum());
    };
    run();
    EXPECT_FALSE(logical.random_states().equal(streams)) << "nothing was drawn";
    logical.leave_out();
    EXPECT_TRUE(logical.random_states().equal(streams));
    EXPECT_TRUE(net->norm->running_mean.equal(mean));
    EXPECT_TRUE(net->seen.equal(seen));
    run();
    EXPECT_FALSE(logical.complete()) << "the batch that was left out counts";
    run();
    logical.synchronize();
    EXPECT_FALSE(net->norm->running_mean.equal(mean));
  });
}

TEST(LogicalRanks, AModelThatChangesAfterwardsIsNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(2, 2);
    net->bias.set_requires_grad(false);
    LogicalRanks logical(comm, net.ptr(), 2);
    const auto run = [&] {
      logical.forward([&] { return std::vector<at::Tensor>{net(at::ones({1, 2}))}; });
    };
    run();
    net->bias.set_requires_grad(true);
    EXPECT_THAT(message_of<InvalidArgument>(run),
                HasSubstr("LogicalRanks: parameter 'bias' required no gradient"));
    net->bias.set_requires_grad(false);
    net->to(at::kDouble);
    EXPECT_THAT(message_of<InvalidArgument>(run), HasSubstr("'weight' was Float [2, 2] on cpu"));
    net->weight.set_requires_grad(false);
    EXPECT_THAT(message_of<InvalidArgument>([&] { LogicalRanks(comm, net.ptr(), 2); }),
                HasSubstr("requires a gradient"));
  });
}

TEST(LogicalRanks, MistakesAreNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(2, 2);
    EXPECT_THAT(message_of<InvalidArgument>([&] { LogicalRanks(comm, net.ptr(), 6); }),
                HasSubstr("6 logical ranks are no power of two"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { LogicalRanks(comm, net.ptr(), 1); }),
                HasSubstr("1 logical ranks cannot be shared equally by 2 ranks"));
    LogicalRanks logical(comm, net.ptr(), 4);
    const auto run = [&] {
      logical.backward(
          logical.forward([&] { return std::vector<at::Tensor>{net(at::ones({1, 2}))}; })[0].sum());
    };
    run();
    EXPECT_THAT(message_of<InvalidArgument>([&] { logical.synchronize(); }),
                HasSubstr("1 of this rank's 2 batches"));
    run();
    EXPECT_TRUE(logical.complete());
    EXPECT_THAT(message_of<InvalidArgument>(run), HasSubstr("this rank has 2 batches a step"));
    logical.synchronize();
    run();
    logical.leave_out();
    EXPECT_FALSE(logical.complete());
    const at::Tensor streams = logical.random_states();
    EXPECT_THAT(message_of<CheckpointError>(
                    [&] { logical.set_random_states(at::zeros({2, 8}, at::kByte), "file"); }),
                HasSubstr("file: holds what is no state of a CPU generator"));
    EXPECT_THROW(logical.set_random_states(at::zeros({}, at::kByte), "file"), CheckpointError);
    EXPECT_THROW(logical.set_random_states(at::zeros({4, 8}, at::kByte), "file"), CheckpointError);
    EXPECT_TRUE(logical.random_states().equal(streams));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::logical_ranks_test
