// The optimizer's state goes by the names of parameters, from any strategy to any other.
#include "lockstep/train/run_state.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <algorithm>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0::run_state_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

// How an optimizer has its parameters.
enum class Order { kAsInModel, kTurned, kWithoutTheLast };

// A model in training: weights decay, and biases do not.
struct Standing {
  Standing(Communicator& communicator, const std::string& by, Order order)
      : comm(communicator), strategy(make_strategy(by)) {
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& p : net->parameters()) {
        p.set_data(p.detach().to(at::kDouble));
        p.copy_(at::linspace(-0.6, 0.7, p.numel(), at::kDouble).view(p.sizes()));
      }
    }
    strategy->set_up(net.ptr(), comm);
    std::vector<at::Tensor> weights, biases;
    for (const auto& item : net->named_parameters())
      (item.key().ends_with("weight") ? weights : biases).push_back(item.value());
    if (order == Order::kTurned) {
      std::reverse(weights.begin(), weights.end());
      std::reverse(biases.begin(), biases.end());
    }
    if (order == Order::kWithoutTheLast) biases.pop_back();
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(weights,
                        std::make_unique<AdamWOptions>(AdamWOptions(0.01).weight_decay(0.3)));
    groups.emplace_back(biases, std::make_unique<AdamWOptions>(AdamWOptions(0.02).weight_decay(0)));
    if (order == Order::kTurned) std::swap(groups[0], groups[1]);
    optimizer = strategy->state().make_optimizer(groups, AdamWOptions(0.05));
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      optimizer->zero_grad();
      const at::Tensor rows = at::arange(12, at::kDouble).view({4, 3}).sin();
      strategy->gradients().compute([&] { return net->forward(rows).square().sum(); });
      strategy->state().step(*optimizer);
    }
  }
  Checkpoint share() { return share_of_run_state(*strategy, *optimizer, nullptr, {}); }
  void restore(const fs::path& path) {
    restore_run_state(read_checkpoint(path), path.string(), *strategy, *optimizer, nullptr);
  }
  // After three steps more, on every rank.
  at::Tensor end() {
    steps(3);
    const auto whole = strategy->placement().whole_parameters();
    std::vector<at::Tensor> all;
    for (const auto& item : net->named_parameters()) all.push_back(item.value().detach().flatten());
    return at::cat(all);
  }

  Communicator comm;
  torch::nn::Sequential net{torch::nn::Linear(3, 5), torch::nn::Linear(5, 2)};
  std::shared_ptr<Strategy> strategy;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

TEST(RunState, TheOptimizersStateIsByNames) {
  for (const char* by : {"ddp", "zero1", "zero3"}) {
    const TestDirectory dir;
    testing::run_threads(2, [&](Communicator& comm) {
      Standing run(comm, by, Order::kAsInModel);
      run.steps(2);
      write_checkpoint(comm, dir / "c", run.share());
    });
    const SlicedTensors state = read_checkpoint(dir / "c").optimizer;
    EXPECT_EQ(state.tensors.size(), 12u) << by;
    for (const char* name : {"0.weight", "0.bias", "1.weight", "1.bias"})
      EXPECT_NE(state.find(std::string(name) + ".exp_avg_sq"), nullptr) << by << ", " << name;
    EXPECT_EQ(state.find("1.weight.exp_avg")->sizes, (std::vector<int64_t>{2, 5}));
    EXPECT_THAT(state.metadata.at("group.0"), HasSubstr(R"("parameters":["0.weight","1.weight"])"));
  }
}

TEST(RunState, GoesOnInAnotherOrderUnderAnotherStrategy) {
  const TestDirectory dir;
  for (const char* from : {"ddp", "zero3"}) {
    at::Tensor expected;
    testing::run_threads(2, [&](Communicator& comm) {
      Standing run(comm, from, Order::kAsInModel);
      run.steps(2);
      write_checkpoint(comm, dir / "c", run.share());
      const at::Tensor end = run.end();
      if (comm.rank() == 0) expected = end.clone();
      comm.barrier();
    });
    for (const char* to : {"ddp", "zero2", "zero3"}) {
      testing::run_threads(2, [&](Communicator& comm) {
        Standing run(comm, to, Order::kTurned);
        run.restore(dir / "c");
        EXPECT_TRUE(at::allclose(run.end(), expected, 0, 1e-12)) << from << " to " << to;
      });
    }
  }
}

// A directory of before names: by position, for the same order.
TEST(RunState, AnOlderCheckpointGoesOn) {
  const TestDirectory dir;
  for (const char* by : {"ddp", "zero1"}) {
    testing::run_threads(2, [&](Communicator& comm) {
      Standing run(comm, by, Order::kAsInModel);
      run.steps(2);
      Checkpoint share = run.share();
      share.optimizer = run.strategy->state().optimizer_state(*run.optimizer);
      write_checkpoint(comm, dir / "old", share);
      EXPECT_NE(read_checkpoint(dir / "old").optimizer.find("3.exp_avg"), nullptr);
      comm.barrier();
      Standing other(comm, by, Order::kAsInModel);
      other.restore(dir / "old");
      EXPECT_TRUE(other.end().equal(run.end())) << by;
    });
  }
}

TEST(RunState, ParametersThatDoNotFitAreNamed) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    Standing all(comm, "zero1", Order::kAsInModel), fewer(comm, "zero1", Order::kWithoutTheLast);
    all.steps(1);
    fewer.steps(1);
    write_checkpoint(comm, dir / "all", all.share());
    write_checkpoint(comm, dir / "fewer", fewer.share());
    EXPECT_THAT(message_of<CheckpointError>([&] { fewer.restore(dir / "all"); }),
                HasSubstr("has the parameter '1.bias', which the optimizer lacks"));
    EXPECT_THAT(message_of<CheckpointError>([&] { all.restore(dir / "fewer"); }),
                HasSubstr("has no parameter '1.bias', which the optimizer has"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::run_state_test
