#include "lockstep/parallel/ddp/join.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <mutex>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/ddp/internal/join_protocol.h"
#include "lockstep/parallel/ddp/sync_batch_norm.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::join_test {
namespace {

using torch::nn::Linear;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", Linear(3, 5));
    second = register_module("second", Linear(5, 2));
    seen = register_buffer("seen", torch::zeros({1}, torch::kDouble));
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    double shift = 0;
    for (auto& p : parameters())
      p.copy_(torch::linspace(-1, 1, p.numel(), torch::kDouble).view(p.sizes()).add(shift += 0.1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (is_training()) seen += 1;
    return second(torch::tanh(first(x)));
  }
  Linear first{nullptr}, second{nullptr};
  torch::Tensor seen;
};
TORCH_MODULE(Net);

// Batch `step` of a rank; every batch has different rows.
torch::Tensor batch(int rank, int step, int64_t rows) {
  const auto start = 100.0 * rank + 10.0 * step;
  return torch::arange(start, start + static_cast<double>(rows * 3), torch::kDouble)
      .remainder(7)
      .div(5)
      .view({rows, 3});
}

torch::optim::SGD optimizer_of(Net& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

struct Case {
  std::vector<int> steps;     // per rank
  std::vector<int64_t> rows;  // of each rank's batches
  DivideBy divide_by = DivideBy::kRanks;
};

// The result of one process: each step averages over the ranks that still have data.
std::vector<torch::Tensor> by_one_process(const Case& what) {
  Net net;
  auto optimizer = optimizer_of(net);
  for (int step = 0;; ++step) {
    torch::Tensor loss;
    double weights = 0;
    for (size_t r = 0; r < what.steps.size(); ++r) {
      if (step >= what.steps[r]) continue;
      const double weight =
          what.divide_by == DivideBy::kSamples ? static_cast<double>(what.rows[r]) : 1;
      const auto mean = net(batch(static_cast<int>(r), step, what.rows[r])).pow(2).mean() * weight;
      loss = loss.defined() ? loss + mean : mean;
      weights += weight;
    }
    if (!loss.defined()) return net->parameters();
    optimizer.zero_grad();
    (loss / weights).backward();
    optimizer.step();
  }
}

void expect_equal_to_one_process(const Case& what, DdpOptions options, bool step_along = true) {
  const auto expected = by_one_process(what);
  testing::run_threads(static_cast<int>(what.steps.size()), [&](Communicator& comm) {
    const auto r = static_cast<size_t>(comm.rank());
    DdpOptions mine = options;
    mine.divide_by = what.divide_by;
    mine.bucket_sizes = {.first = 64, .rest = 64};
    DistributedDataParallel model(Net(), comm, mine);
    auto optimizer = optimizer_of(model.module());
    auto join = model.join();
    for (int step = 0; step < what.steps[r]; ++step) {
      optimizer.zero_grad();
      model(batch(comm.rank(), step, what.rows[r])).pow(2).mean().backward();
      optimizer.step();
    }
    if (step_along)
      join.finish([&] { optimizer.step(); });
    else
      join.finish();
    const auto got = model->parameters();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-10, 1e-12))
          << "rank " << r << " parameter " << i << "\n"
          << got[i] << expected[i];
      const auto all = comm.all_gather(got[i].detach().contiguous().view({1, -1}));
      EXPECT_TRUE(all.eq(all[0]).all().item<bool>()) << i;
    }
    // Buffers are equal, too, and further collectives work.
    const auto seen = comm.all_gather(model->seen);
    EXPECT_TRUE(seen.eq(seen[0]).all().item<bool>()) << seen;
    comm.barrier();
  });
}

TEST(Join, RanksWithFewerBatchesAddNothing) {
  expect_equal_to_one_process({.steps = {2, 5, 3}, .rows = {2, 2, 2}}, {});
  expect_equal_to_one_process({.steps = {4, 1}, .rows = {2, 2}}, {});
  expect_equal_to_one_process({.steps = {3, 3}, .rows = {2, 2}}, {});
}

TEST(Join, ARankMayHaveNoDataAtAll) {
  expect_equal_to_one_process({.steps = {0, 3}, .rows = {2, 2}}, {});
  expect_equal_to_one_process({.steps = {2, 0, 0}, .rows = {2, 2, 2}}, {});
  expect_equal_to_one_process({.steps = {0, 0}, .rows = {2, 2}}, {});
}

TEST(Join, DividedBySamplesItIsOneProcessOnTheWholeBatch) {
  expect_equal_to_one_process(
      {.steps = {2, 4, 3}, .rows = {1, 4, 2}, .divide_by = DivideBy::kSamples}, {});
}

TEST(Join, StaticGraphsAveragedBuffersAndHooksAreShadowedToo) {
  const Case what{.steps = {2, 5}, .rows = {2, 2}};
  expect_equal_to_one_process(what, {.static_graph = true});
  expect_equal_to_one_process(what, {.buffers = Buffers::kAverage});
  class Plain final : public CommHook {
    Work start(Communicator& comm, const GradBucket& bucket, const CallNote& note) override {
      return comm.iall_reduce(bucket.flat, ReduceOp::kAvg, note);
    }
    void finish(Communicator& comm, const GradBucket&, const CallNote&) override { comm.barrier(); }
  };
  testing::run_threads(2, [&](Communicator& comm) {
    DistributedDataParallel model(Net(), comm, {.hook = std::make_shared<Plain>()});
    auto join = model.join();
    for (int step = 0; step < 1 + 2 * comm.rank(); ++step)
      model(batch(comm.rank(), step, 2)).sum().backward();
    join.finish();
  });
}

// Without a step of its own, a rank that ran out early gets the other ranks' parameters in the end.
TEST(Join, ParametersComeFromARankThatWasThereToTheEnd) {
  const Case what{.steps = {1, 4}, .rows = {2, 2}};
  expect_equal_to_one_process(what, {}, /*step_along=*/false);
}

// Gradients of a backward without communication, left when the data ended, count in the next
// reduction.
TEST(Join, LeftoverMicroStepsCount) {
  testing::run_threads(2, [](Communicator& comm) {
    DistributedDataParallel model(Net(), comm);
    auto join = model.join();
    model.accumulate(2);
    const int micros = comm.rank() == 0 ? 1 : 2;
    for (int i = 0; i < micros; ++i) model(batch(comm.rank(), i, 2)).sum().backward();
    int reductions = 0;
    join.finish([&] { ++reductions; });
    EXPECT_EQ(reductions, comm.rank() == 0 ? 1 : 0);

    Net one;
    // Two micro-steps: the mean of both ranks' losses, then rank 1's.
    for (int r = 0; r < 2; ++r) (one(batch(r, 0, 2)).sum() / 2).backward();
    one(batch(1, 1, 2)).sum().backward();
    for (size_t i = 0; i < one->parameters().size(); ++i)
      EXPECT_TRUE(torch::allclose(model->parameters()[i].grad(), one->parameters()[i].grad())) << i;
  });
}

TEST(Join, ACollectiveOfTheUsersOwnIsNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    DistributedDataParallel model(Net(), comm);
    auto join = model.join();
    for (int step = 0; step < 1 + comm.rank(); ++step) {
      model(batch(comm.rank(), step, 2)).sum().backward();
      if (step == 0) continue;
      const std::string text = message_of<Mismatch>([&] { comm.all_reduce(torch::ones({3})); });
      EXPECT_NE(text.find("join_test.cpp"), std::string::npos) << text;
      return;
    }
    EXPECT_THROW(join.finish(), Mismatch);
  });
}

TEST(Join, MayBeUsedAgainAndNotTwiceAtOnce) {
  testing::run_threads(2, [](Communicator& comm) {
    DistributedDataParallel model(Net(), comm);
    for (int epoch = 0; epoch < 2; ++epoch) {
      auto join = model.join();
      EXPECT_THROW((void)model.join(), InvalidArgument);
      for (int step = 0; step < 1 + comm.rank(); ++step)
        model(batch(comm.rank(), step, 2)).sum().backward();
      join.finish();
      EXPECT_THROW(join.finish(), InvalidArgument);
    }
    model(batch(0, 0, 2)).sum().backward();  // as before
  });
}

// The layers' statistics and gradients are those of the existing batches.
TEST(Join, SyncBatchNormIsShadowedToo) {
  struct NormedImpl : torch::nn::Module {
    NormedImpl() {
      linear = register_module("linear", Linear(3, 4));
      norm = register_module("norm", torch::nn::BatchNorm1d(4));
      to(torch::kDouble);
      const torch::NoGradGuard no_grad;
      linear->weight.copy_(torch::linspace(-1, 2, 12, torch::kDouble).view({4, 3}));
      linear->bias.fill_(0.5);
    }
    torch::Tensor forward(const torch::Tensor& x) { return norm(torch::tanh(linear(x))); }
    Linear linear{nullptr};
    torch::nn::BatchNorm1d norm{nullptr};
  };
  const std::vector<int> steps{1, 3, 2};
  const auto target = [](int64_t rows) {
    return torch::linspace(0, 1, rows * 4, torch::kDouble).view({rows, 4});
  };
  NormedImpl one;
  torch::optim::SGD one_step(one.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    std::vector<torch::Tensor> rows, targets;
    for (int r = 0; r < 3; ++r) {
      if (step >= steps[static_cast<size_t>(r)]) continue;
      rows.push_back(batch(r, step, 2 + r));
      targets.push_back(target(2 + r));
    }
    one_step.zero_grad();
    (one.forward(torch::cat(rows)) - torch::cat(targets)).pow(2).mean().backward();
    one_step.step();
  }
  testing::run_threads(3, [&](Communicator& comm) {
    const auto net = std::make_shared<NormedImpl>();
    convert_sync_batch_norm(net, comm);
    DistributedDataParallel model(net, comm, {.divide_by = DivideBy::kSamples});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto join = model.join();
    for (int step = 0; step < steps[static_cast<size_t>(comm.rank())]; ++step) {
      optimizer.zero_grad();
      const auto rows = batch(comm.rank(), step, 2 + comm.rank());
      (model(rows) - target(rows.size(0))).pow(2).mean().backward();
      optimizer.step();
    }
    join.finish([&] { optimizer.step(); });
    EXPECT_TRUE(torch::allclose(net->linear->weight, one.linear->weight, 1e-10, 1e-12));
    EXPECT_TRUE(torch::allclose(net->norm->weight, one.norm->weight, 1e-10, 1e-12));
    EXPECT_TRUE(torch::allclose(net->norm->running_var, one.norm->running_var, 1e-10, 1e-12));
  });
}

TEST(JoinProtocol, TheLowestRankWithDataSpeaks) {
  using namespace lockstep::internal;  // NOLINT
  const std::vector<Announcement> said{{}, {Step::kBucket, {4}}, {}, {Step::kBucket, {4}}};
  const JoinState join_state = read_join_state(said);
  EXPECT_EQ(join_state.contributing, 2);
  EXPECT_EQ(join_state.first, 1);
  EXPECT_EQ(join_state.step.detail[0], 4);
  EXPECT_EQ(read_join_state(std::vector<Announcement>(3)).contributing, 0);
}

}  // namespace
}  // namespace lockstep::inline v0::join_test
