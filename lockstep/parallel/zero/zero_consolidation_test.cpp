// The state of all ranks as one file, and back on other numbers of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <mutex>
#include <variant>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/muon.h"
#include "lockstep/parallel/zero/test_net.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::zero_consolidation_test {
namespace {

using namespace zero_test;
using ::testing::HasSubstr;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr flat::BucketSizes kSmall = {.first = 200, .rest = 300};

NamedTensors named(TestNet& net) {
  NamedTensors result;
  for (const at::Tensor& p : trained(net)) result.emplace_back(std::to_string(result.size()), p);
  return result;
}

// Muon accepts only matrices.
NamedTensors matrices_if_muon(TestNet& net, const ZeroAlgorithm& algorithm) {
  NamedTensors result = named(net);
  if (std::holds_alternative<optim::MuonOptions>(algorithm))
    std::erase_if(result, [](const auto& entry) { return entry.second.dim() != 2; });
  return result;
}

void copy_into(TestNet& net, const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  const auto parameters = trained(net);
  for (size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
}

template <typename O>
void steps(TestNet& net, O& optimizer, int from, int to, int part, int parts) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    loss_of(net, step, part, parts).backward();
    optimizer.step();
  }
}

// The state of a run of `ranks` after some steps.
struct Standing {
  std::vector<at::Tensor> parameters;
  Safetensors state;
};

Standing run_to(int ranks, const ZeroAlgorithm& algorithm, int to) {
  Standing result;
  testing::run_threads(ranks, [&](Communicator& comm) {
    TestNet net;
    ZeroOptimizer optimizer(comm, named(net), algorithm, {.bucket_sizes = kSmall});
    steps(net, optimizer, 0, to, comm.rank(), comm.size());
    Safetensors state = optimizer.state_on_root();
    EXPECT_EQ(state.tensors.empty(), comm.rank() != 0 || to == 0);
    if (comm.rank() == 0) result = {copies_of(trained(net)), std::move(state)};
  });
  return result;
}

std::vector<at::Tensor> go_on(int ranks, const ZeroAlgorithm& algorithm, const Standing& from,
                              int step, int to) {
  std::vector<at::Tensor> result;
  testing::run_threads(ranks, [&](Communicator& comm) {
    TestNet net;
    ZeroOptimizer optimizer(comm, named(net), algorithm, {.bucket_sizes = kSmall});
    copy_into(net, from.parameters);
    optimizer.load_state(from.state, "test");
    steps(net, optimizer, step, to, comm.rank(), comm.size());
    if (comm.rank() == 0) result = copies_of(trained(net));
  });
  return result;
}

std::vector<ZeroAlgorithm> algorithms() {
  return {SGDOptions(0.05).momentum(0.9).dampening(0.2),
          AdamOptions(1e-2).weight_decay(0.01).amsgrad(true), AdamWOptions(1e-2)};
}

TEST(ZeroConsolidation, AResumedRunTakesTheSameStepsBitForBit) {
  for (const ZeroAlgorithm& algorithm : algorithms()) {
    for (const int ranks : {1, 2, 3}) {
      const Standing whole = run_to(ranks, algorithm, 7);
      const auto resumed = go_on(ranks, algorithm, run_to(ranks, algorithm, 4), 4, 7);
      EXPECT_TRUE(same_bits(resumed, whole.parameters)) << algorithm.index() << ", " << ranks;
    }
  }
}

TEST(ZeroConsolidation, AnotherNumberOfRanksMayGoOn) {
  for (const ZeroAlgorithm& algorithm : algorithms()) {
    const Standing whole = run_to(1, algorithm, 8);
    for (const int before : {1, 3, 4}) {
      const Standing half = run_to(before, algorithm, 4);
      for (const int after : {1, 2, 4}) {
        EXPECT_LE(distance(go_on(after, algorithm, half, 4, 8), whole.parameters), 1e-10)
            << algorithm.index() << ": " << before << " to " << after;
      }
    }
  }
}

TEST(ZeroConsolidation, APlainOptimizerMayGoOnAndHandBack) {
  const TestDirectory directory;
  const AdamWOptions options = AdamWOptions(1e-2).weight_decay(0.1);
  const Standing half = run_to(3, options, 4);
  write_safetensors(directory / "optimizer.safetensors", half.state.tensors, half.state.metadata);
  TestNet net;
  copy_into(net, half.parameters);
  torch::optim::AdamW plain(trained(net), AdamWOptions(0.5));
  load_optimizer(plain, directory / "optimizer.safetensors");
  steps(net, plain, 4, 6, 0, 1);
  EXPECT_LE(distance(trained(net), run_to(2, options, 6).parameters), 1e-8);
  const Standing back{copies_of(trained(net)), optimizer_state(plain)};
  EXPECT_LE(distance(go_on(4, options, back, 6, 8), run_to(2, options, 8).parameters), 1e-8);
}

// The state that plain optimizers leave if parameters were unused at times.
TEST(ZeroConsolidation, ParametersMayHaveTakenUnequalNumbersOfSteps) {
  const auto take = [](auto& optimizer, TestNet& net, int step, int part, int parts) {
    optimizer.zero_grad();
    loss_of(net, step, part, parts).backward();
    optimizer.step();
  };
  TestNet one;
  optim::FusedAdamW reference(trained(one), AdamWOptions(1e-2));
  for (int step = 0; step < 4; ++step) {
    reference.zero_grad();
    loss_of(one, step).backward();
    if (step % 2 == 0) trained(one)[1].mutable_grad().reset();
    trained(one)[3].mutable_grad().reset();
    reference.step();
  }
  Standing half{copies_of(trained(one)), optimizer_state(reference)};
  for (auto& entry : half.state.tensors) entry.second = entry.second.clone();
  for (int step = 4; step < 7; ++step) take(reference, one, step, 0, 1);
  for (const int ranks : {1, 3})
    EXPECT_LE(distance(go_on(ranks, AdamWOptions(1e-2), half, 4, 7), trained(one)), 1e-10);
}

TEST(ZeroConsolidation, StateOfAnotherKindIsRefusedAndNothingChanges) {
  const Standing adam = run_to(2, AdamOptions(1e-2), 2);
  testing::run_threads(2, [&](Communicator& comm) {
    TestNet net;
    ZeroOptimizer optimizer(comm, named(net), AdamWOptions(1e-2));
    steps(net, optimizer, 0, 2, comm.rank(), 2);
    const auto before = optimizer.state_numel();
    EXPECT_THAT(message_of<CheckpointError>([&] { optimizer.load_state(adam.state, "file"); }),
                HasSubstr("file: was saved from Adam, but the optimizer is AdamW"));
    Safetensors cut = optimizer.state_on_root();
    if (comm.rank() == 0) {
      cut.tensors.pop_back();
      EXPECT_THROW(optimizer.load_state(cut, "file"), CheckpointError);
    }
    EXPECT_EQ(optimizer.state_numel(), before);
  });
}

bool same_tensors(const Safetensors& a, const Safetensors& b) {
  if (a.metadata != b.metadata || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors) {
    const at::Tensor* other = b.find(name);
    if (other == nullptr || !tensor.equal(*other)) return false;
  }
  return true;
}

// The shares that each rank writes equal the gathered state, and can be read on any number of
// ranks.
TEST(ZeroConsolidation, SharesInFilesAreTheWholeState) {
  std::vector<ZeroAlgorithm> all = algorithms();
  all.emplace_back(optim::MuonOptions(1e-2));
  for (const ZeroAlgorithm& algorithm : all) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int before : {1, 2, 4}) {
        const TestDirectory directory;
        Safetensors whole;
        testing::run_threads(before, [&](Communicator& comm) {
          TestNet net;
          ZeroOptimizer optimizer(comm, matrices_if_muon(net, algorithm), algorithm,
                                  {.stage = stage, .bucket_sizes = kSmall});
          steps(net, optimizer, 0, 3, comm.rank(), comm.size());
          Checkpoint share;
          share.optimizer = optimizer.own_state();
          const Safetensors gathered = optimizer.state_on_root();
          write_checkpoint(comm, directory / "c", share);
          if (comm.rank() == 0) whole = gathered;
          comm.barrier();  // the gathered state consists of views
        });
        const SlicedTensors read = read_checkpoint(directory / "c").optimizer;
        EXPECT_TRUE(same_tensors(read.whole(), whole)) << algorithm.index() << ", " << stage;
        EXPECT_FALSE(whole.tensors.empty());
        for (const int after : {1, 2, 3, 8}) {
          testing::run_threads(after, [&](Communicator& comm) {
            TestNet net;
            ZeroOptimizer optimizer(comm, matrices_if_muon(net, algorithm), algorithm,
                                    {.stage = stage, .bucket_sizes = kSmall});
            optimizer.load_state(read, "test");
            const Safetensors back = optimizer.state_on_root();
            if (comm.rank() == 0) {
              EXPECT_TRUE(same_tensors(back, whole))
                  << algorithm.index() << ", " << stage << ": " << before << " to " << after;
            }
            comm.barrier();
          });
        }
      }
    }
  }
}

TEST(ZeroConsolidation, AnotherOrderInMemoryMayGoOn) {
  const TestDirectory directory;
  const auto run = [&](int ranks, at::MemoryFormat order, bool save) {
    at::Tensor result;
    testing::run_threads(ranks, [&](Communicator& comm) {
      at::Tensor p = at::linspace(-1, 1, 120, at::kDouble).view({2, 3, 4, 5}).contiguous(order);
      p.requires_grad_();
      ZeroOptimizer optimizer(comm, {{"p", p}}, AdamWOptions(1e-2));
      if (!save) optimizer.load_state(read_checkpoint(directory / "c").optimizer, "test");
      (p * p * at::arange(120, at::kDouble).view({2, 3, 4, 5})).sum().backward();
      if (save) {
        optimizer.step();
        Checkpoint share;
        share.optimizer = optimizer.own_state();
        write_checkpoint(comm, directory / "c", share);
      }
      const Safetensors state = optimizer.state_on_root();
      if (comm.rank() == 0) result = state.find("0.exp_avg")->clone();
      comm.barrier();
    });
    return result;
  };
  const at::Tensor saved = run(3, at::MemoryFormat::ChannelsLast, true);
  EXPECT_TRUE(run(2, at::MemoryFormat::Contiguous, false).equal(saved));
  EXPECT_TRUE(run(2, at::MemoryFormat::ChannelsLast, false).equal(saved));
}

TEST(ZeroConsolidation, AParameterMayHaveNoElements) {
  const TestDirectory directory;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto make = [] { return at::ones({9, 4}, at::kDouble).requires_grad_(); };
    const at::Tensor p = make(), none = at::empty({0, 3}, at::kDouble).requires_grad_();
    ZeroOptimizer optimizer(comm, {{"none", none}, {"p", p}}, AdamWOptions(1e-2));
    (p.square().sum() + none.sum()).backward();
    optimizer.step();
    Checkpoint share;
    share.optimizer = optimizer.own_state();
    write_checkpoint(comm, directory / "c", share);
    optimizer.load_state(read_checkpoint(directory / "c").optimizer, "test");
    EXPECT_EQ(read_checkpoint(directory / "c").optimizer.find("0.exp_avg")->sizes,
              (std::vector<int64_t>{0, 3}));
  });
}

TEST(ZeroConsolidation, APartOfTheStateIsRefusedAndNothingChanges) {
  testing::run_threads(2, [&](Communicator& comm) {
    TestNet net;
    ZeroOptimizer optimizer(comm, named(net), AdamWOptions(1e-2), {.bucket_sizes = kSmall});
    steps(net, optimizer, 0, 2, comm.rank(), 2);
    SlicedTensors own = optimizer.own_state();
    for (auto& [name, tensor] : own.tensors) {
      for (TensorSlice& slice : tensor.slices) slice.values = slice.values.clone();
    }
    const auto copied = [&] {
      Safetensors state = optimizer.state_on_root();
      for (auto& [name, tensor] : state.tensors) tensor = tensor.clone();
      return state;
    };
    const Safetensors before = copied();
    EXPECT_THAT(message_of<CheckpointError>([&] { optimizer.load_state(own, "file"); }),
                HasSubstr("is there in part only"));
    EXPECT_TRUE(same_tensors(copied(), before));
  });
}

TEST(ZeroConsolidation, NothingWasStepped) {
  const Standing fresh = run_to(2, AdamWOptions(1e-2), 0);
  EXPECT_TRUE(fresh.state.tensors.empty());
  EXPECT_LE(distance(go_on(3, AdamWOptions(1e-2), fresh, 0, 2),
                     run_to(1, AdamWOptions(1e-2), 2).parameters),
            1e-10);
}

}  // namespace
}  // namespace lockstep::inline v0::zero_consolidation_test
