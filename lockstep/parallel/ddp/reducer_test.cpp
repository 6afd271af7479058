#include "lockstep/parallel/ddp/reducer.h"

#include <ATen/ops/embedding.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/ddp/power_sgd.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::reducer_test {
namespace {

using torch::nn::Linear;

at::Tensor leaf(std::initializer_list<int64_t> shape, double scale = 1) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return torch::linspace(-scale, scale, n, torch::kDouble)
      .view(at::IntArrayRef(shape))
      .set_requires_grad(true);
}

// Records the parameters' order in the buckets.
class Order final : public CommHook {
 public:
  void prepare(Communicator&, std::span<const GradBucket> buckets) override {
    for (const GradBucket& bucket : buckets) {
      for (const at::Tensor& gradient : bucket.gradients) sizes.push_back(gradient.numel());
    }
  }
  Work start(Communicator& comm, const GradBucket& bucket, const CallNote& note) override {
    started.push_back(bucket.index);
    return comm.iall_reduce(bucket.flat, ReduceOp::kAvg, note);
  }
  std::vector<int64_t> sizes;
  std::vector<size_t> started;
};

// Registered in another order than the order of use; rank 1 uses them in yet another.
TEST(Reducer, BucketsFollowTheOrderOfRankZerosFirstBackward) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto a = leaf({1}), b = leaf({2}), c = leaf({3});
    const auto order = std::make_shared<Order>();
    Reducer reducer({{"a", a}, {"b", b}, {"c", c}}, comm,
                    {.bucket_sizes = {.first = 1, .rest = 1}, .hook = order});
    // Backward first reaches what forward used last.
    const auto chain = [](const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) {
      at::Tensor value = x.sum();
      for (const at::Tensor& next : {y, z}) {
        value = value.exp();
        value = value * next.sum();
      }
      return value;
    };
    for (int step = 0; step < 3; ++step) {
      for (const auto& p : {a, b, c}) p.mutable_grad().reset();
      reducer.before_forward();
      (comm.rank() == 0 ? chain(b, a, c) : chain(c, b, a)).backward();
    }
    EXPECT_EQ(order->sizes, (std::vector<int64_t>{3, 1, 2}));
    EXPECT_EQ(order->started, (std::vector<size_t>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
  });
}

// Records the buckets that have been started in a backward.
class Shown final : public CommHook {
 public:
  Work start(Communicator& comm, const GradBucket& bucket, const CallNote& note) override {
    started.push_back(bucket.flat);
    return comm.iall_reduce(bucket.flat, ReduceOp::kAvg, note);
  }
  std::vector<at::Tensor> started;
};

// The case of a backward that also sums over another axis of ranks.
TEST(Reducer, ABucketMovesWhileTheBackwardWaitsInAnotherGroup) {
  static constexpr int kSteps = 10;
  std::atomic<int> waits{0};  // the step in which rank 0 waits
  testing::run_threads(2, [&waits](Communicator& comm) {
    Communicator other = comm.duplicate();
    const auto late = leaf({4}), early = leaf({4});
    const auto buckets = std::make_shared<Shown>();
    Reducer reducer({{"late", late}, {"early", early}}, comm,
                    {.bucket_sizes = {.first = 1, .rest = 1}, .hook = buckets});
    int over = 0;
    for (int step = 0; step <= kSteps; ++step) {
      buckets->started.clear();
      for (const at::Tensor& parameter : {late, early}) parameter.mutable_grad().reset();
      reducer.before_forward(true);
      const at::Tensor middle = late * 1.0;
      // Between the gradients of `early`, whose bucket is being reduced from the second step on,
      // and `late`.
      middle.register_hook([&](const at::Tensor&) {
        if (step == 0) return;
        ASSERT_EQ(buckets->started.size(), 1U);
        // Continues only after rank 0 waits there.
        if (comm.rank() == 0) {
          waits = step;
        } else {
          while (waits < step) std::this_thread::yield();
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        other.all_reduce(torch::ones({1}));
        over += buckets->started[0][0].item<double>() == -1.5;
      });
      ((middle * early).sum() * (1.0 + comm.rank())).backward();
      EXPECT_EQ(early.grad()[0].item<double>(), -1.5);
    }
    if (comm.rank() == 0) {
      EXPECT_EQ(over, kSteps);
    }
  });
}

TEST(Reducer, AStaticGraphMayBringAGradientTwiceAndMustNotChange) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto a = leaf({4}), b = leaf({4}), spare = leaf({4});
    Reducer reducer({{"a", a}, {"b", b}, {"spare", spare}}, comm, {.static_graph = true});
    for (int step = 0; step < 3; ++step) {
      for (const auto& p : {a, b, spare}) p.mutable_grad().reset();
      reducer.before_forward();
      const uint64_t before = comm.stats().collectives;
      ((a * b).sum() * (comm.rank() + 1)).backward();
      EXPECT_TRUE(torch::allclose(a.grad(), b * 1.5)) << step;
      EXPECT_FALSE(spare.grad().defined());
      // Layout, order, symmetric memory, bucket and used parameters; then the bucket alone.
      EXPECT_EQ(comm.stats().collectives - before == 1, step > 0);
    }
    reducer.before_forward();
    const std::string text = message_of<InvalidArgument>([&] { a.sum().backward(); });
    EXPECT_NE(text.find("'b' arrived 0 times in this backward and 1 times in the first"),
              std::string::npos)
        << text;
    const std::string more = message_of<InvalidArgument>([&] { (a * b * spare).sum().backward(); });
    EXPECT_NE(more.find("'spare'"), std::string::npos) << more;
  });
}

TEST(Reducer, SparseGradientsAreSummedWithoutADenseOne) {
  testing::run_threads(3, [](Communicator& comm) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(50, 4).sparse(true));
    table->to(torch::kDouble);
    const auto dense = leaf({4});
    {
      const torch::NoGradGuard no_grad;
      table->weight.copy_(leaf({50, 4}));
    }
    const auto loss = [&](const at::Tensor& weight, int rank, int step) {
      const auto rows = torch::tensor({rank, rank + 1, 7 + step, 7}, torch::kLong);
      return (torch::nn::functional::embedding(
                  rows, weight, torch::nn::functional::EmbeddingFuncOptions().sparse(true)) *
              dense)
          .pow(2)
          .sum();
    };
    Reducer reducer({{"table", table->weight}, {"dense", dense}}, comm);
    for (int step = 0; step < 2; ++step) {
      table->weight.mutable_grad().reset();
      dense.mutable_grad().reset();
      reducer.before_forward();
      // Rank 2 does not use the table at all in step 1.
      const bool uses = step == 0 || comm.rank() != 2;
      if (uses)
        loss(table->weight, comm.rank(), step).backward();
      else
        dense.sum().backward();
      const at::Tensor got = table->weight.grad();
      const at::Tensor got_dense = dense.grad().clone();
      ASSERT_TRUE(got.is_sparse());
      EXPECT_LE(got._nnz(), 3 * 4);

      at::Tensor whole = table->weight.detach().clone().set_requires_grad(true);
      const at::Tensor vector = dense.detach().clone().set_requires_grad(true);
      at::Tensor sum = torch::zeros({}, torch::kDouble);
      for (int rank = 0; rank < 3; ++rank) {
        if (step == 1 && rank == 2) {
          sum = sum + vector.sum();
          continue;
        }
        const auto rows = torch::tensor({rank, rank + 1, 7 + step, 7}, torch::kLong);
        sum = sum + (whole.index_select(0, rows) * vector).pow(2).sum();
      }
      (sum / 3).backward();
      EXPECT_TRUE(torch::allclose(got.to_dense(), whole.grad(), 1e-12, 1e-12)) << step;
      EXPECT_TRUE(torch::allclose(got_dense, vector.grad(), 1e-12, 1e-12)) << step;
    }
  });
}

TEST(Reducer, ALateSparseGradientIsExplained) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    const auto other = torch::ones({2}).set_requires_grad(true);
    Reducer reducer({{"table", table->weight}, {"other", other}}, comm);
    reducer.before_forward();
    other.sum().backward();
    reducer.before_forward();
    const std::string text = message_of<InvalidArgument>(
        [&] { table(torch::tensor({1}, torch::kLong)).sum().backward(); });
    EXPECT_NE(text.find("'table' has a sparse gradient, but had none in the first backward"),
              std::string::npos)
        << text;
  });
}

// Tutorial 001's wrong code: `continue` before the forward. All calls look alike, except for the
// number of batches taken.
TEST(Ddp, ASkippedStepIsNamedThroughTheLoader) {
  struct Numbers {
    int64_t size() const { return 8; }
    at::Tensor batch(std::span<const int64_t> indices) const {
      return torch::full({static_cast<int64_t>(indices.size()), 3}, 1.0);
    }
  };
  testing::run_threads(2, [](Communicator& comm) {
    const Numbers numbers;
    data::SequentialSampler sampler(numbers.size());
    data::Loader loader(numbers, sampler, {.batch_size = 2});
    DistributedDataParallel model(Linear(3, 1), comm);
    model.follow(loader);
    const std::string text = message_of<Mismatch>([&] {
      for (int epoch = 0; epoch < 2; ++epoch) {
        int64_t i = 0;
        for (auto& rows : loader) {
          if (epoch == 1 && i++ == 1 && comm.rank() == 1) continue;
          model(rows).sum().backward();
        }
      }
    });
    EXPECT_NE(text.find("of forward 6 (batch 6)"), std::string::npos) << text;
    EXPECT_NE(text.find("of forward 6 (batch 7)"), std::string::npos) << text;
  });
}

TEST(Ddp, ARankThatFailsInForwardIsNamedToTheOthers) {
  const auto start = std::chrono::steady_clock::now();
  testing::run_threads(3, [](Communicator& comm) {
    DistributedDataParallel model(Linear(3, 1), comm);
    model(torch::ones({2, 3})).sum().backward();
    if (comm.rank() == 1) {
      EXPECT_THROW((void)model(torch::ones({2, 4})), std::exception);  // and gives up
      return;
    }
    const std::string text =
        message_of<PeerLost>([&] { model(torch::ones({2, 3})).sum().backward(); });
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("all_reduce"), std::string::npos) << text;
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Ddp, UnequalBatchesDividedBySamplesAreOneBatch) {
  const auto rows = leaf({12, 3}).detach();
  Linear one(3, 2);
  one->to(torch::kDouble);
  const auto weight = leaf({2, 3}).detach();
  const auto prepare = [&](Linear& linear) {
    const torch::NoGradGuard no_grad;
    linear->to(torch::kDouble);
    linear->weight.copy_(weight);
    linear->bias.zero_();
  };
  prepare(one);
  one(rows).pow(2).mean().backward();
  testing::run_threads(3, [&](Communicator& comm) {
    Linear linear(3, 2);
    prepare(linear);
    DistributedDataParallel model(linear, comm, {.divide_by = DivideBy::kSamples});
    for (int step = 0; step < 2; ++step) {
      linear->zero_grad();
      const int64_t begin[] = {0, 1, 5, 12};
      model(rows.slice(0, begin[comm.rank()], begin[comm.rank() + 1])).pow(2).mean().backward();
      EXPECT_TRUE(torch::allclose(linear->weight.grad(), one->weight.grad(), 1e-12, 1e-12));
      EXPECT_TRUE(torch::allclose(linear->bias.grad(), one->bias.grad(), 1e-12, 1e-12));
    }
  });
}

// One output is made of another: its gradient must not be weighted twice.
TEST(Ddp, OutputsOfSeveralTensorsAreWeighedOnce) {
  struct TwoImpl : torch::nn::Module {
    TwoImpl() {
      first = register_module("first", Linear(3, 3));
      to(torch::kDouble);
      const torch::NoGradGuard no_grad;
      first->weight.copy_(leaf({3, 3}));
      first->bias.zero_();
    }
    std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x) {
      const auto hidden = first(x);
      return {hidden.tanh(), {hidden}};
    }
    Linear first{nullptr};
  };
  const auto loss = [](const std::tuple<at::Tensor, std::vector<at::Tensor>>& outputs) {
    return std::get<0>(outputs).pow(2).mean() + std::get<1>(outputs)[0].pow(2).mean();
  };
  const auto rows = leaf({5, 3}).detach();
  TwoImpl one;
  loss(one.forward(rows)).backward();
  testing::run_threads(2, [&](Communicator& comm) {
    const auto two = std::make_shared<TwoImpl>();
    DistributedDataParallel model(two, comm, {.divide_by = DivideBy::kSamples});
    loss(model(comm.rank() == 0 ? rows.slice(0, 0, 1) : rows.slice(0, 1))).backward();
    EXPECT_TRUE(torch::allclose(two->first->weight.grad(), one.first->weight.grad(), 1e-12, 1e-12));
  });

  struct Named {
    at::Tensor logits;
  };
  struct OtherImpl : torch::nn::Module {
    OtherImpl() { first = register_module("first", Linear(3, 3)); }
    Named forward(const at::Tensor& x) { return {first(x)}; }
    Linear first{nullptr};
  };
  testing::run_threads(2, [&](Communicator& comm) {
    DistributedDataParallel model(std::make_shared<OtherImpl>(), comm,
                                  {.divide_by = DivideBy::kSamples});
    (void)model(torch::ones({2, 3}));  // all count alike
    EXPECT_THROW((void)model(torch::ones({2 + comm.rank(), 3})), InvalidArgument);
  });
}

TEST(Ddp, BuffersMayBeAveragedOrLeftAlone) {
  struct CountersImpl : torch::nn::Module {
    CountersImpl() {
      mean = register_buffer("mean", torch::zeros({2}));
      count = register_buffer("count", torch::zeros({1}, torch::kLong));
      linear = register_module("linear", Linear(2, 1));
    }
    at::Tensor forward(const at::Tensor& x) { return linear(x); }
    at::Tensor mean, count;
    Linear linear{nullptr};
  };
  for (const Buffers buffers : {Buffers::kAverage, Buffers::kOwn}) {
    testing::run_threads(2, [&](Communicator& comm) {
      const auto counters = std::make_shared<CountersImpl>();
      DistributedDataParallel model(counters, comm, {.buffers = buffers});
      counters->mean.fill_(comm.rank() * 4);
      counters->count.fill_(comm.rank() + 5);
      model(torch::ones({1, 2}));
      const bool own = buffers == Buffers::kOwn;
      EXPECT_EQ(counters->mean[0].item<double>(), own ? comm.rank() * 4 : 2);
      EXPECT_EQ(counters->count.item<int64_t>(), own ? comm.rank() + 5 : 5);
    });
  }
}

// For gradients of rank 2 the hook must be exact; for others it approximates and adds the errors
// later.
TEST(PowerSgd, IsExactForLowRanksAndPaysErrorsBack) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto w = leaf({12, 10}), bias = leaf({3});
    Reducer reducer({{"w", w}, {"bias", bias}}, comm,
                    {.hook = make_power_sgd_hook({.rank = 2, .start_step = 1})});
    const auto own = leaf({12, 10}).detach() * (comm.rank() + 1) +
                     torch::arange(120, torch::kDouble).remainder(7).view({12, 10});
    const auto average = leaf({12, 10}).detach() * 1.5 +
                         torch::arange(120, torch::kDouble).remainder(7).view({12, 10});
    at::Tensor sum = torch::zeros({12, 10}, torch::kDouble);
    const int steps = 60;
    for (int step = 0; step < steps; ++step) {
      w.mutable_grad().reset();
      bias.mutable_grad().reset();
      reducer.before_forward();
      ((w * own).sum() + bias.sum() * comm.rank()).backward();
      EXPECT_TRUE(torch::allclose(bias.grad(), torch::full({3}, 0.5, torch::kDouble)));
      const double error = (w.grad() - average).norm().item<double>();
      if (step == 0) {
        EXPECT_LT(error, 1e-12);  // not compressed yet
      } else {
        EXPECT_GT(error, 1e-3);
      }
      const auto all = comm.all_gather(w.grad().contiguous().view({1, -1}));
      EXPECT_TRUE(all.eq(all[0]).all().item<bool>());
      EXPECT_LE(torch::linalg_matrix_rank(w.grad()).item<int64_t>(), step == 0 ? 12 : 2);
      sum += w.grad();
    }
    // The missing part is at most a few steps' worth, however long it runs.
    EXPECT_LT((sum / steps - average).norm().item<double>(), 0.1 * average.norm().item<double>());
  });
  testing::run_threads(2, [](Communicator& comm) {
    const auto w = leaf({12, 10});
    Reducer reducer({{"w", w}}, comm, {.hook = make_power_sgd_hook({.rank = 2, .start_step = 0})});
    const auto u = leaf({12, 1}).detach(), v = leaf({1, 10}, 3).detach() + 1;
    const auto ones = torch::ones({12, 10}, torch::kDouble);
    for (int step = 0; step < 2; ++step) {
      w.mutable_grad().reset();
      reducer.before_forward();
      (w * (u.mm(v) + ones * comm.rank())).sum().backward();
      EXPECT_TRUE(torch::allclose(w.grad(), u.mm(v) + ones * 0.5, 1e-9, 1e-9)) << step;
    }
  });
  EXPECT_THROW(make_power_sgd_hook({.rank = 0}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::reducer_test
