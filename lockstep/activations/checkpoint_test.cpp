#include "lockstep/activations/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/thread_generator.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::checkpoint_test {
namespace {

using ::testing::HasSubstr;
using torch::nn::Linear;

// Two layers with random operations between them.
struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(double p) : dropped(p) {
    in = register_module("in", Linear(8, 16));
    out = register_module("out", Linear(16, 8));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + out(torch::dropout(torch::gelu(in(x)), dropped, dropped > 0));
  }
  double dropped;
  Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(Layer);

struct Net : torch::nn::Module {
  explicit Net(double dropped = 0.3) {
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Layer(dropped)));
    head = register_module("head", Linear(8, 3));
    // Uses no random numbers, because ranks that are threads share their generator.
    const at::NoGradGuard no_grad;
    int index = 0;
    for (at::Tensor& p : parameters())
      p.copy_(torch::arange(p.numel()).add(31 * index++).sin().mul(0.3).view(p.sizes()));
  }
  at::Tensor forward(const at::Tensor& x, bool again) {
    at::Tensor h = x;
    for (const Layer& block : blocks) {
      const auto run = [&block](const at::Tensor& rows) { return block.ptr()->forward(rows); };
      h = again ? checkpoint(run, h) : run(h);
    }
    return head(h);
  }
  std::vector<Layer> blocks;
  Linear head{nullptr};
};

at::Tensor input() {
  return at::linspace(-2, 2, 5 * 8).view({5, 8});
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& p : net.parameters()) result.push_back(p.grad().clone());
  return result;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return true;
}

TEST(Checkpoint, GradientsHaveTheSameBits) {
  for (const bool bf16 : {false, true}) {
    std::vector<std::vector<at::Tensor>> found;
    std::vector<at::Tensor> next;  // the numbers drawn afterwards
    for (const bool again : {false, true}) {
      Net net;
      const at::Tensor x = input().requires_grad_();
      torch::manual_seed(11);
      at::Tensor loss;
      {
        const amp::Autocast autocast(at::kCPU, at::kBFloat16, bf16);
        loss = net.forward(x, again).to(at::kFloat).square().sum();
      }
      loss.backward();
      found.push_back(gradients_of(net));
      found.back().push_back(x.grad());
      found.back().push_back(loss.detach());
      next.push_back(torch::rand({4}));
    }
    EXPECT_TRUE(same_bits(found[0], found[1])) << bf16;
    EXPECT_TRUE(next[0].equal(next[1])) << bf16;
  }
}

TEST(Checkpoint, OnlyTheInputsAreKept) {
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> made;
  const at::Tensor w = torch::ones({100}, at::requires_grad());
  const auto part = [&](const at::Tensor& x) {
    const at::Tensor middle = (x * w).sin();
    made.emplace_back(middle.getIntrusivePtr());
    return middle.cos();
  };
  const at::Tensor x = torch::ones({100});
  const at::Tensor kept = part(x);
  EXPECT_FALSE(made[0].expired());
  const at::Tensor computed_again = checkpoint(part, x);
  EXPECT_TRUE(made[1].expired());
  EXPECT_TRUE(computed_again.requires_grad()) << "by a parameter alone";
  computed_again.sum().backward();
  EXPECT_EQ(made.size(), 3u);
  const at::Tensor again = w.grad().clone();
  w.mutable_grad().reset();
  kept.sum().backward();
  EXPECT_TRUE(again.equal(w.grad()));
}

TEST(Checkpoint, PartsNest) {
  int runs = 0;
  const at::Tensor w = torch::full({3}, 2.0, at::requires_grad());
  const auto inner = [&](const at::Tensor& x) {
    ++runs;
    return (x * w).sin();
  };
  const auto outer = [&](const at::Tensor& x) { return checkpoint(inner, checkpoint(inner, x)); };
  const at::Tensor x = torch::ones({3}, at::requires_grad());
  checkpoint(outer, x).sum().backward();
  EXPECT_EQ(runs, 2 + 2 + 2) << "forward, the outer part again, each inner part again";
  const std::vector<at::Tensor> found = {w.grad().clone(), x.grad().clone()};
  w.mutable_grad().reset();
  x.mutable_grad().reset();
  inner(inner(x)).sum().backward();
  EXPECT_TRUE(found[0].allclose(w.grad()));
  EXPECT_TRUE(found[1].equal(x.grad()));
}

struct Output {
  at::Tensor value, places, nothing;
  int count = 0;
  auto tensors() { return std::tie(value, places, nothing); }
};

TEST(Checkpoint, TensorsMayLieInNestedValues) {
  const at::Tensor w = torch::full({4}, 3.0, at::requires_grad());
  const auto part = [&](const std::vector<at::Tensor>& xs, const std::optional<at::Tensor>& y,
                        int times) {
    Output out;
    out.value = (xs[0] + xs[1]) * w * times;
    out.places = out.value.argmax();
    out.count = y ? 1 : 2;
    return out;
  };
  const at::Tensor a = torch::ones({4}, at::requires_grad()), b = torch::arange(4, at::kFloat);
  const Output out =
      checkpoint(part, std::vector<at::Tensor>{a, b}, std::optional<at::Tensor>(), 5);
  EXPECT_EQ(out.count, 2);
  EXPECT_EQ(out.places.item<int64_t>(), 3);
  EXPECT_FALSE(out.places.requires_grad());
  EXPECT_FALSE(out.nothing.defined());
  out.value.sum().backward();
  EXPECT_TRUE(a.grad().eq(15).all().item<bool>());
  EXPECT_TRUE(w.grad().equal((torch::arange(4, at::kFloat) + 1) * 5));
}

TEST(Checkpoint, WithoutGradientsItIsAPlainCall) {
  const at::NoGradGuard no_grad;
  int runs = 0;
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& x) {
        ++runs;
        return x * 2;
      },
      torch::ones({2}));
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(y.requires_grad());
}

TEST(Checkpoint, WhatChangesInBetweenIsNamed) {
  const at::Tensor w = torch::ones({2}, at::requires_grad());
  const at::Tensor x = torch::ones({2});
  const at::Tensor y = checkpoint([&](const at::Tensor& rows) { return rows * w; }, x);
  x.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
  int runs = 0;
  const std::vector<at::Tensor> parts = checkpoint(
      [&](const at::Tensor& rows) {
        return std::vector<at::Tensor>(static_cast<size_t>(++runs), rows * w);
      },
      torch::ones({2}));
  EXPECT_THAT(message_of<Error>([&] { parts[0].sum().backward(); }),
              HasSubstr("gives 2 tensors, and gave 1"));
  EXPECT_THROW(checkpoint([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("x"); },
                          torch::ones({2})),
               std::runtime_error);
}

TEST(Checkpoint, WhatNobodyUsedGetsNoGradient) {
  const at::Tensor a = torch::ones({3}, at::requires_grad()),
                   b = a.detach().clone().requires_grad_();
  const std::vector<at::Tensor> parts = checkpoint(
      [&](const at::Tensor& x) { return std::vector<at::Tensor>{x * a, x * b}; }, torch::ones({3}));
  parts[0].sum().backward();
  EXPECT_TRUE(a.grad().eq(1).all().item<bool>());
  EXPECT_FALSE(b.grad().defined());
}

TEST(Checkpoint, AnInputIsNotChangedInPlace) {
  EXPECT_THAT(message_of<InvalidArgument>([] {
                checkpoint([](const at::Tensor& x) { return at::Tensor(x).sub_(1) * 2; },
                           torch::ones({2}));
              }),
              HasSubstr("changes an input in place"));
}

// A part may return an object that it refers to.
TEST(Checkpoint, AParameterMayBeTheResult) {
  const at::Tensor w = torch::ones({2}, at::requires_grad());
  const at::Tensor y = checkpoint([&](const at::Tensor&) { return w; }, torch::ones({1}));
  EXPECT_TRUE(w.is_leaf());
  (y * 3).sum().backward();
  EXPECT_TRUE(w.grad().eq(3).all().item<bool>());
}

// No gradient comes from outside the parts: each backward is nevertheless one round.
TEST(Checkpoint, PartsAloneAreOneBackward) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor a = torch::full({64}, 2.0, at::requires_grad()),
                     b = torch::full({64}, 3.0, at::requires_grad());
    ZeroOptimizer optimizer(
        comm, {{"a", a}, {"b", b}}, torch::optim::SGDOptions(0.5),
        {.stage = 3, .accumulate = true, .bucket_sizes = {.first = 200, .rest = 200}});
    const auto forward = [&](bool throws) {
      const at::Tensor x = torch::ones({64}, at::requires_grad());
      const at::Tensor h = checkpoint(
          [&a, throws](const at::Tensor& rows) {
            const at::Tensor y = rows * a;
            if (throws && at::GradMode::is_enabled()) throw std::runtime_error("no data");
            return y;
          },
          x);
      return checkpoint([&b](const at::Tensor& rows) { return rows * b; }, h).sum();
    };
    const uint64_t before = optimizer.stats().of(Op::kReduceScatter).calls;
    forward(false).backward();
    EXPECT_EQ(optimizer.stats().of(Op::kReduceScatter).calls - before, optimizer.bucket_count());
    optimizer.step();
    EXPECT_TRUE(a.detach().eq(0.5).all().item<bool>());
    EXPECT_TRUE(b.detach().eq(2).all().item<bool>());
    comm.barrier();
    // The last part runs again first; then the other one throws.
    EXPECT_THROW(forward(true).backward(), std::runtime_error);
    forward(false).backward();
    optimizer.step();
    EXPECT_TRUE(a.detach().eq(0.5 - 0.5 * 2).all().item<bool>());
    EXPECT_TRUE(b.detach().eq(2 - 0.5 * 0.5).all().item<bool>());
  });
}

TEST(Checkpoint, AThreadsOwnGeneratorIsDrawnFromAgain) {
  const at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  const at::Tensor x = torch::ones({64}, at::requires_grad());
  at::Tensor y;
  {
    const hooks::ThreadGenerator guard([&]() -> const at::Generator& { return generator; });
    y = checkpoint([](const at::Tensor& rows) { return torch::dropout(rows, 0.5, true); }, x);
  }
  torch::manual_seed(99);  // backward's thread has another state
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(y.detach()));
}

// The gradients that ranks average equal those without it, bit for bit.
TEST(Checkpoint, UnderDistributedDataParallelAndZero) {
  const auto run = [](Communicator& comm, bool again, const std::string& way) {
    at::set_num_threads(1);
    auto net = std::make_shared<Net>(0);
    const at::Tensor x = input() * (1.0 + comm.rank());
    if (way == "ddp") {
      DistributedDataParallel<std::shared_ptr<Net>> ddp(
          net, comm, {.bucket_sizes = {.first = 600, .rest = 600}});
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        ddp(x, again).square().sum().backward();
      }
      return gradients_of(*net);
    }
    ZeroOptimizer optimizer(comm, to_named_tensors(net->named_parameters()),
                            torch::optim::SGDOptions(1e-3),
                            {.stage = way == "zero1" ? 1 : 3,
                             .accumulate = way == "zero3",
                             .bucket_sizes = {.first = 600, .rest = 600}});
    for (int step = 0; step < 3; ++step) {
      for (int micro = 0; micro < (way == "zero3" ? 2 : 1); ++micro)
        net->forward(x, again).square().sum().backward();
      optimizer.step();
    }
    std::vector<at::Tensor> weights;
    for (const at::Tensor& p : net->parameters()) weights.push_back(p.detach().clone());
    return weights;
  };
  for (const char* way : {"ddp", "zero1", "zero3"}) {
    testing::run_threads(2, [&](Communicator& comm) {
      const auto without = run(comm, false, way);
      const auto with = run(comm, true, way);
      EXPECT_TRUE(same_bits(without, with)) << way;
    });
  }
}

}  // namespace
}  // namespace lockstep::inline v0::checkpoint_test
