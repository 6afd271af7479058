// ZeroOptions::policy: where parameters are divided.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/muon.h"
#include "lockstep/parallel/zero/layer_net.h"
#include "lockstep/parallel/zero/test_net.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::zero_test {
namespace {

using flat::Cut;
using flat::ShardPolicy;
using ::testing::HasSubstr;
using torch::optim::AdamWOptions;

AdamWOptions policy_adamw() {
  return AdamWOptions(0.05).weight_decay(0.1);
}

// The policy for TestNet.
ShardPolicy mixed_policy() {
  return {{{.cut = Cut::kRows, .names = {"first.weight"}},
           {.cut = Cut::kWhole, .names = {"second"}},
           {.cut = Cut::kElements, .below = 20},
           {.cut = Cut::kRows, .dims = 2, .rows = 2}}};
}

std::vector<at::Tensor> reference_after(int steps) {
  TestNet net;
  optim::FusedAdamW optimizer(trained(net), policy_adamw());
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(net, step).backward();
    optimizer.step({.max_norm = 0.5});
  }
  return copies_of(trained(net));
}

void step_at(ZeroOptimizer& optimizer, TestNet& net, int step, Communicator& comm) {
  loss_of(net, step, comm.rank(), comm.size()).backward();
  optimizer.step({.max_norm = 0.5});
}

TEST(ZeroPolicy, RanksAreOneProcessWhateverIsCutWhere) {
  const std::vector<at::Tensor> alone = reference_after(6);
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int stage : {1, 2, 3}) {
      for (const bool one_copy : {true, false}) {
        if (stage == 3 && !one_copy) continue;
        testing::run_threads(ranks, [&](Communicator& comm) {
          TestNet net;
          ZeroOptimizer optimizer(comm, named_trained(net), policy_adamw(),
                                  {.stage = stage,
                                   .one_copy = one_copy,
                                   .bucket_sizes = {.first = 200, .rest = 300},
                                   .policy = mixed_policy()});
          for (int step = 0; step < 6; ++step) step_at(optimizer, net, step, comm);
          EXPECT_LE(distance(trained(net), alone), 1e-12) << ranks << " ranks, stage " << stage;
          EXPECT_EQ(optimizer.memory(), optimizer.planned_memory());
        });
      }
    }
  }
}

// The parts that a rank keeps state of show where parameters were divided.
TEST(ZeroPolicy, RanksKeepRowsAndWholeTensors) {
  testing::run_threads(3, [](Communicator& comm) {
    const at::Tensor rows = torch::ones({300, 24}).requires_grad_();
    const at::Tensor blocks = torch::ones({301, 16}).requires_grad_();
    const at::Tensor whole = torch::ones({40, 40}).requires_grad_();
    const at::Tensor rest = torch::ones({5000}).requires_grad_();
    const NamedTensors parameters = {
        {"rows", rows}, {"blocks", blocks}, {"whole", whole}, {"rest", rest}};
    ZeroOptimizer optimizer(comm, parameters, AdamWOptions(0.1),
                            {.stage = 3,
                             .policy = {{{.cut = Cut::kRows, .names = {"rows"}},
                                         {.cut = Cut::kRows, .names = {"blocks"}, .rows = 32},
                                         {.cut = Cut::kWhole, .names = {"whole"}}}}});
    (rows.sum() + blocks.sum() + whole.sum() + rest.sum()).backward();
    optimizer.step();
    const SlicedTensors own = optimizer.own_state();
    const auto slices_of = [&](size_t index) {
      const SlicedTensor* found = own.find(std::to_string(index) + ".exp_avg");
      return found == nullptr ? std::vector<TensorSlice>() : found->slices;
    };
    for (const auto& [index, grain] : {std::pair<size_t, int64_t>{0, 24}, {1, 32 * 16}}) {
      const std::vector<TensorSlice> slices = slices_of(index);
      ASSERT_EQ(slices.size(), 1U) << "each rank has some";
      EXPECT_EQ(slices[0].begin % grain, 0);
      const int64_t numel = parameters[index].second.numel();
      EXPECT_TRUE(slices[0].end() % grain == 0 || slices[0].end() == numel);
      EXPECT_LE(slices[0].values.numel(), numel / 3 + 2 * grain);
    }
    for (const TensorSlice& slice : slices_of(2)) EXPECT_EQ(slice.values.numel(), 1600);
    const at::Tensor holders =
        comm.all_gather(torch::full({1}, static_cast<int64_t>(slices_of(2).size())));
    EXPECT_EQ(holders.sum().item<int64_t>(), 1);
    EXPECT_EQ(optimizer.sharding(),
              "rule 1 (rows of 'rows'): 1 tensor, 28800 bytes\n"
              "rule 2 (32 rows of 'blocks'): 1 tensor, 19264 bytes\n"
              "rule 3 (whole of 'whole'): 1 tensor, 6400 bytes\n"
              "no rule (anywhere): 1 tensor, 20000 bytes\n");
  });
}

// A state does not record where it was divided: it moves from one policy and number of ranks to
// another.
TEST(ZeroPolicy, StatesPassFromOnePolicyToAnother) {
  const std::vector<at::Tensor> alone = reference_after(6);
  Safetensors state;
  std::vector<at::Tensor> values;
  testing::run_threads(3, [&](Communicator& comm) {
    TestNet net;
    ZeroOptimizer optimizer(comm, named_trained(net), policy_adamw(),
                            {.stage = 3, .policy = mixed_policy()});
    for (int step = 0; step < 3; ++step) step_at(optimizer, net, step, comm);
    const Safetensors whole = optimizer.state_on_root();
    if (comm.rank() == 0) {
      for (const auto& [name, tensor] : whole.tensors)
        state.tensors.emplace_back(name, tensor.clone());
      state.metadata = whole.metadata;
      values = copies_of(trained(net));
    }
  });
  for (const bool mixed : {true, false}) {
    testing::run_threads(2, [&](Communicator& comm) {
      TestNet net;
      std::vector<at::Tensor> own = trained(net);
      {
        const at::NoGradGuard no_grad;
        for (size_t i = 0; i < own.size(); ++i) own[i].copy_(values[i]);
      }
      ZeroOptimizer optimizer(comm, named_trained(net), policy_adamw(),
                              {.stage = 2, .policy = mixed ? mixed_policy() : ShardPolicy()});
      optimizer.load_state(state, "test");
      for (int step = 3; step < 6; ++step) step_at(optimizer, net, step, comm);
      EXPECT_LE(distance(trained(net), alone), 1e-12) << mixed;
    });
  }
}

// Each rank is asked for the values of its part, here whole rows.
TEST(ZeroPolicy, ParametersAreBornWhereTheyAreCut) {
  testing::run_threads(2, [](Communicator& comm) {
    const at::Tensor matrix = torch::zeros({101, 24}).requires_grad_();
    const at::Tensor bias = torch::zeros({7}).requires_grad_();
    const auto initial = [](const std::string& name, int64_t begin, const at::Tensor& part) {
      EXPECT_TRUE(name != "matrix" || (begin % 24 == 0 && part.numel() % 24 == 0));
      part.copy_(torch::arange(begin, begin + part.numel()));
    };
    ZeroOptimizer optimizer(
        comm, {{"matrix", matrix}, {"bias", bias}}, AdamWOptions(0.1),
        {.stage = 3, .policy = {{{.cut = Cut::kRows, .dims = 2}}}, .initial = initial});
    EXPECT_TRUE(matrix.detach().view(-1).equal(torch::arange(101 * 24).to(at::kFloat)));
    EXPECT_TRUE(bias.detach().equal(torch::arange(7).to(at::kFloat)));
  });
}

// Units are fetched in their divided layout.
TEST(ZeroPolicy, UnitsAreCutByTheirRules) {
  const ShardPolicy policy{{{.cut = Cut::kRows, .names = {"layers.*.up"}, .dims = 2},
                            {.cut = Cut::kWhole, .names = {"layers.*.down"}}}};
  std::vector<at::Tensor> alone;
  {
    LayerNet net(3);
    optim::FusedAdamW optimizer(trained(net), policy_adamw());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_of(net, step).backward();
      optimizer.step();
    }
    alone = copies_of(trained(net));
  }
  testing::run_threads(4, [&](Communicator& comm) {
    LayerNet net(3);
    ZeroOptimizer optimizer(comm, to_named_tensors(net->named_parameters()), policy_adamw(),
                            {.stage = 3,
                             .bucket_sizes = {.first = 3000, .rest = 5000},
                             .policy = policy,
                             .units = {.model = net.ptr()},
                             .copies = {0, 0, 1, 1}});
    for (int step = 0; step < 3; ++step) {
      loss_of(net, step, comm.rank(), 4).backward();
      optimizer.step();
    }
    EXPECT_GT(optimizer.memory().units, 0);
    EXPECT_EQ(optimizer.memory(), optimizer.planned_memory());
    const auto whole = optimizer.whole_parameters();
    EXPECT_LE(distance(trained(net), alone), 1e-12);
    comm.barrier();
  });
}

TEST(ZeroPolicy, MuonsPolicyIsWholeMatrices) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto matrices = [] {
      return NamedTensors{{"a", torch::ones({20, 30}).requires_grad_()},
                          {"b", torch::ones({20, 10}).requires_grad_()}};
    };
    const ZeroOptimizer plain(comm, matrices(), optim::MuonOptions(), {.stage = 2});
    EXPECT_EQ(plain.sharding(),
              "rule 1 (whole, 2 dims): 2 tensors, 3200 bytes\n"
              "no rule (anywhere): 0 tensors, 0 bytes\n");
    const auto refusal = [&](const ShardPolicy& policy) {
      return message_of<InvalidArgument>([&] {
        ZeroOptimizer(comm, matrices(), optim::MuonOptions(), {.stage = 2, .policy = policy});
      });
    };
    EXPECT_THAT(refusal({{{.cut = Cut::kWhole, .names = {"a"}}, {.cut = Cut::kRows}}}),
                HasSubstr("'b' is cut by rule 2 (rows) of the policy"));
    EXPECT_THAT(refusal({{{.cut = Cut::kWhole, .names = {"b"}}}}),
                HasSubstr("'a' is cut by no rule (anywhere)"));
    EXPECT_THAT(refusal({{{.cut = Cut::kWhole, .names = {"c"}}}}), HasSubstr("names 'c'"));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::zero_test
