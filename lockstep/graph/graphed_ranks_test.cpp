// Steps of DistributedDataParallel as graphs, over nccl, on fake devices.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/stream.h"
#include "lockstep/graph/graphed_step.h"
#include "lockstep/optim/adam.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/fake_cuda/staged_ranks_test.h"

namespace lockstep::inline v0::testing {
namespace {

class GraphedRanks : public WithoutRaces {
 protected:
  void SetUp() override {
    WithoutRaces::SetUp();
    if (const std::string why = device::why_no_graphs(at::Device(at::kCUDA, 0)); !why.empty())
      GTEST_SKIP() << why;
  }
};

// The errors of two ranks.
class SaidByRanks {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(text);
  }
  void expect(const std::string& words) {
    ASSERT_EQ(texts_.size(), 2u);
    for (const std::string& text : texts_) EXPECT_NE(text.find(words), std::string::npos) << text;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

constexpr int kRankSteps = 8;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 40));
    second = register_module("second", torch::nn::Linear(40, 3));
    const torch::NoGradGuard no_grad;
    double value = 0;
    for (at::Tensor& p : parameters())
      p.copy_(torch::linspace(-0.5, 0.5, p.numel()).view(p.sizes()).add(value += 0.01));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

at::Tensor batch_of(int rank, int step, at::Device device) {
  return torch::arange(24).add(rank * 5 + step * 3).remainder(17).div(9).view({4, 6}).to(device);
}

// One rank's training, with steps that may be graphs.
class Training {
 public:
  Training(Communicator& comm, bool static_graph)
      : comm_(comm),
        stream_(device::side_stream(comm.device())),
        model_(wrapped(static_graph)),
        optimizer_(net_->parameters(), torch::optim::AdamWOptions(1.0 / 256)),
        scaler_(comm, {.init_scale = 16, .growth_interval = 3}) {}

  // Runs on the graph's stream, without a graph.
  void eagerly(const at::Tensor& x) {
    const c10::Stream current = device::current_stream(comm_.device());
    device::order(current, stream_);
    {
      const c10::StreamGuard on(stream_);
      step(x);
    }
    device::order(stream_, current);
  }

  at::Tensor step(const at::Tensor& x) {
    optimizer_.zero_grad();
    at::Tensor loss = model_(x).square().mean();
    scaler_.scale(loss).backward();
    scaler_.step(optimizer_);
    scaler_.update();
    return loss;
  }
  GraphedStepOptions options() const { return {.device = comm_.device(), .stream = stream_}; }

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> result;
    for (const at::Tensor& p : net_->parameters()) result.push_back(p.detach().cpu());
    return result;
  }

 private:
  DistributedDataParallel<Net> wrapped(bool static_graph) {
    net_->to(comm_.device());
    const c10::Stream current = device::current_stream(comm_.device());
    device::order(current, stream_);
    const c10::StreamGuard on(stream_);
    // Buckets of a few gradients each.
    DistributedDataParallel<Net> model(net_, comm_,
                                       {.bucket_sizes = {512, 512}, .static_graph = static_graph});
    device::order(stream_, current);
    return model;
  }

  Communicator comm_;
  c10::Stream stream_;
  Net net_;
  DistributedDataParallel<Net> model_;
  optim::FusedAdamW optimizer_;
  amp::GradScaler scaler_;
};

TEST_F(GraphedRanks, DdpTrainsAsEagerly) {
  std::mutex mutex;
  std::vector<std::vector<at::Tensor>> results;
  for (const bool graphed : {false, true}) {
    run_on_nccl(2, [&](Communicator& comm) {
      at::set_num_threads(1);
      Training training(comm, true);
      GraphedStep step(training.options(), [&](const at::Tensor& x) { return training.step(x); });
      for (int i = 0; i < kRankSteps; ++i) {
        const at::Tensor x = batch_of(comm.rank(), i, comm.device());
        if (!graphed) {
          training.eagerly(x);
          continue;
        }
        Counting counted;
        step(x);
        if (i <= 3) continue;
        const FakeCudaCounts counts = counted.counts();
        EXPECT_EQ(counts.stops(), 0) << counts.text();
        EXPECT_EQ(counts.replays, 1);
        EXPECT_EQ(counts.operations, 3) << counts.text();
      }
      EXPECT_EQ(step.captured(), graphed ? 1 : 0);
      const auto parameters = training.parameters();
      const std::lock_guard lock(mutex);
      results.push_back(parameters);
    });
  }
  ASSERT_EQ(results.size(), 4u);
  for (const auto& result : results)
    for (size_t i = 0; i < result.size(); ++i)
      EXPECT_TRUE(at::equal(result[i], results[0][i])) << i;
}

// The exception of the rank's step; the ranks' devices are released then.
template <typename Error, typename Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST_F(GraphedRanks, ARankThatStaysAwayFromAReplayIsNamed) {
  std::string said;
  run_on_nccl(
      2,
      [&](Communicator& comm) {
        Training training(comm, true);
        GraphedStep step(training.options(), [&](const at::Tensor& x) { return training.step(x); });
        const at::Tensor x = batch_of(comm.rank(), 0, comm.device());
        for (int i = 0; i < 5; ++i) step(x);
        comm.barrier();
        if (comm.rank() == 1) return;
        said = error_of<Error>([&] { step(x); });
      },
      std::chrono::seconds(5));
  EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
  EXPECT_NE(said.find("replay of graph 1"), std::string::npos) << said;
}

// The rank is present, and does something else.
TEST_F(GraphedRanks, ARankThatIsLateForAReplayIsNamed) {
  std::string said;
  std::promise<void> over;
  run_on_nccl(
      2,
      [&](Communicator& comm) {
        Training training(comm, true);
        GraphedStep step(training.options(), [&](const at::Tensor& x) { return training.step(x); });
        const at::Tensor x = batch_of(comm.rank(), 0, comm.device());
        for (int i = 0; i < 5; ++i) step(x);
        comm.barrier();
        if (comm.rank() == 1) return over.get_future().wait();
        said = error_of<Timeout>([&] { step(x); });
        over.set_value();
      },
      std::chrono::seconds(3));
  EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
  EXPECT_NE(said.find("replay of graph 1"), std::string::npos) << said;
}

// Objects that DistributedDataParallel holds from its construction on stay on that stream.
TEST_F(GraphedRanks, ADdpOfTheDefaultStreamIsNamed) {
  SaidByRanks said;
  run_on_nccl(2, [&](Communicator& comm) {
    Net net;
    net->to(comm.device());
    DistributedDataParallel<Net> model(net, comm, {.static_graph = true});
    GraphedStep step({.device = comm.device()}, [&](const at::Tensor& x) {
      net->zero_grad();
      at::Tensor loss = model(x).square().mean();
      loss.backward();
      return loss;
    });
    const at::Tensor x = batch_of(comm.rank(), 0, comm.device());
    for (int i = 0; i < 3; ++i) step(x);
    const std::string text = error_of<InvalidArgument>([&] { step(x); });
    said.add(text);
  });
  said.expect("DistributedDataParallel");
}

TEST_F(GraphedRanks, ZeroSaysThatItCannotBeCaptured) {
  SaidByRanks said;
  run_on_nccl(2, [&](Communicator& comm) {
    const c10::Stream stream = device::side_stream(comm.device());
    const c10::StreamGuard on(stream);
    const at::Tensor weight = torch::ones({8}).to(comm.device()).requires_grad_();
    ZeroOptimizer optimizer(comm, {{"weight", weight}}, torch::optim::AdamWOptions(0.01),
                            ZeroOptions{.stage = 1});
    GraphedStep step({.device = comm.device(), .stream = stream}, [&](const at::Tensor& x) {
      optimizer.zero_grad();
      at::Tensor loss = (weight * x).sum();
      loss.backward();
      optimizer.step();
      return loss;
    });
    const at::Tensor x = torch::ones({8}).to(comm.device());
    for (int i = 0; i < 3; ++i) step(x);
    const std::string text = error_of<InvalidArgument>([&] { step(x); });
    said.add(text);
  });
  said.expect("graph");
}

// The engines' hosts take part in a call while it runs.
TEST_F(GraphedRanks, EnginesWhoseHostsTakePartSaySo) {
  for (const bool peer : {false, true}) {
    SaidByRanks said;
    const auto body = [&](Communicator& comm) {
      const at::Tensor sum = torch::zeros({4}).to(comm.device());
      GraphedStep step({.device = comm.device(), .warm_up = 2}, [&](const at::Tensor& x) {
        sum.copy_(x);
        comm.all_reduce(sum, ReduceOp::kSum);
        return sum.sum();
      });
      const at::Tensor x = torch::full({4}, 2).to(comm.device(), torch::kFloat);
      for (int i = 0; i < 2; ++i) step(x);
      const std::string text = error_of<InvalidArgument>([&] { step(x); });
      comm.all_reduce(sum, ReduceOp::kSum);
      said.add(text);
    };
    run_on_staged(2, body, {.peer = peer});
    said.expect("cannot be part of a graph");
  }
}

TEST_F(GraphedRanks, AReplayAgainstAnEagerStepIsAMismatch) {
  SaidByRanks said;
  run_on_nccl(2, [&](Communicator& comm) {
    Training training(comm, true);
    GraphedStep step(training.options(), [&](const at::Tensor& x) { return training.step(x); });
    const at::Tensor x = batch_of(comm.rank(), 0, comm.device());
    for (int i = 0; i < 5; ++i) step(x);
    const std::string text =
        error_of<Mismatch>([&] { step(comm.rank() == 1 ? x.narrow(0, 0, 3) : x); });
    said.add(text);
  });
  said.expect("replay of graph 1");
}

// One rank captures the call that the other's device would wait for.
TEST_F(GraphedRanks, ACapturedCallAgainstAnEagerOneIsAMismatch) {
  SaidByRanks said;
  run_on_nccl(2, [&](Communicator& comm) {
    Training training(comm, true);
    GraphedStepOptions options = training.options();
    options.warm_up = comm.rank() == 0 ? 2 : 3;
    GraphedStep step(options, [&](const at::Tensor& x) { return training.step(x); });
    const at::Tensor x = batch_of(comm.rank(), 0, comm.device());
    for (int i = 0; i < 2; ++i) step(x);
    const std::string text = error_of<Mismatch>([&] { step(x); });
    said.add(text);
  });
  said.expect("captured, bucket 0");
}

// A rank that waited for one group before it showed itself to the other would wait forever.
TEST_F(GraphedRanks, GroupsThatRanksCallInOppositeOrdersReplay) {
  run_on_nccl(
      2,
      [&](Communicator& comm) {
        std::vector<Communicator> groups{comm, comm.duplicate()};
        std::vector<at::Tensor> sums;
        for (int i = 0; i < 2; ++i) sums.push_back(torch::zeros({4}).to(comm.device()));
        GraphedStep step({.device = comm.device(), .warm_up = 2}, [&](const at::Tensor& x) {
          std::vector<Work> works;
          for (int i = 0; i < 2; ++i) sums[static_cast<size_t>(i)].copy_(x).add_(i);
          for (int i = 0; i < 2; ++i) {
            const auto which = static_cast<size_t>(comm.rank() == 0 ? i : 1 - i);
            works.push_back(groups[which].iall_reduce(sums[which]));
          }
          for (Work& work : works) work.wait();
          return sums[0] + sums[1];
        });
        for (int i = 0; i < 5; ++i) {
          const at::Tensor x = torch::full({4}, comm.rank() + i).to(comm.device(), torch::kFloat);
          EXPECT_EQ(step(x).sum().item<float>(), 4 * (2 * (1 + 2 * i) + 2)) << i;
        }
        EXPECT_EQ(step.captured(), 1);
      },
      std::chrono::seconds(20));
}

// Replays would not wait for it.
TEST_F(GraphedRanks, ACallFromBeforeTheStepIsRefusedInIt) {
  SaidByRanks said;
  run_on_nccl(2, [&](Communicator& comm) {
    const at::Tensor sum = torch::ones({4}).to(comm.device());
    Work work;
    GraphedStep step({.device = comm.device(), .warm_up = 2}, [&](const at::Tensor& x) {
      work.wait();
      return (sum * x).sum();
    });
    const at::Tensor x = torch::ones({4}).to(comm.device());
    for (int i = 0; i < 2; ++i) {
      work = comm.iall_reduce(sum);
      step(x);
    }
    work = comm.iall_reduce(sum);
    const std::string text = error_of<InvalidArgument>([&] { step(x); });
    // The communicator remains usable.
    work.wait();
    comm.all_reduce(sum);
    EXPECT_EQ(sum.sum().item<float>(), 4 * 16);
    said.add(text);
  });
  said.expect("before a graph's capture");
}

// The device never executed it.
TEST_F(GraphedRanks, ACallOfACaptureThatFailedIsWaitedForByNobody) {
  run_on_nccl(2, [&](Communicator& comm) {
    const at::Tensor sum = torch::ones({4}).to(comm.device());
    Work work;
    bool fails = false;
    GraphedStep step({.device = comm.device(), .warm_up = 2}, [&](const at::Tensor& x) {
      work = comm.iall_reduce(sum);
      if (fails) x.sum().item<float>();
      work.wait();
      return sum * x;
    });
    const at::Tensor x = torch::ones({4}).to(comm.device());
    for (int i = 0; i < 2; ++i) step(x);
    fails = true;
    EXPECT_NE(error_of<InvalidArgument>([&] { step(x); }).find("_local_scalar_dense"),
              std::string::npos);
    work.wait();
    comm.all_reduce(sum);
    EXPECT_EQ(sum.sum().item<float>(), 4 * 8);
  });
}

// As with wait().
TEST_F(GraphedRanks, TestOrdersTheStreamInACapture) {
  run_on_nccl(2, [&](Communicator& comm) {
    const at::Tensor sum = torch::zeros({4}).to(comm.device());
    GraphedStep step({.device = comm.device(), .warm_up = 2}, [&](const at::Tensor& x) {
      sum.copy_(x);
      Work work = comm.iall_reduce(sum);
      while (!work.test()) {
      }
      return sum * 2;
    });
    for (int i = 0; i < 5; ++i) {
      const at::Tensor x = torch::full({4}, comm.rank() + i).to(comm.device(), torch::kFloat);
      EXPECT_EQ(step(x).sum().item<float>(), 4 * 2 * (1 + 2 * i)) << i;
    }
    EXPECT_EQ(step.captured(), 1);
  });
}

TEST_F(GraphedRanks, ACallOfTheHostsIsRefusedAndNamed) {
  SaidByRanks said;
  run_on_nccl(2, [&](Communicator& comm) {
    Training training(comm, false);
    GraphedStep step(training.options(), [&](const at::Tensor& x) { return training.step(x); });
    const at::Tensor x = batch_of(comm.rank(), 0, comm.device());
    for (int i = 0; i < 3; ++i) step(x);
    const std::string text = error_of<InvalidArgument>([&] { step(x); });
    // The ranks continue.
    training.eagerly(x);
    comm.barrier();
    said.add(text);
  });
  said.expect("static_graph");
}

}  // namespace
}  // namespace lockstep::inline v0::testing
