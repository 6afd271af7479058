#include "lockstep/parallel/ddp/kinds_of_models_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/ddp/average_parameters.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/ddp/gradient_averager.h"
#include "lockstep/replicas/average_gradients.h"
#include "lockstep/replicas/broadcast_parameters.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::kinds_of_models_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 12;
constexpr int kSteps = 6;

void expect_as_alone(const NamedTensors& got, const std::string& what) {
  const NamedTensors expected = trained_alone(kRows, kSteps);
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, expected[i].first) << what;
    EXPECT_LT((got[i].second - expected[i].second).abs().max().item<double>(), 1e-10)
        << what << ", " << got[i].first;
  }
}

// Calls run(model, comm, what) with a model of each kind.
template <typename Run>
void with_each_kind(int ranks, const Run& run) {
  testing::run_threads(ranks, [&](Communicator& comm) { run(module_net(), comm, "module"); });
  testing::run_threads(ranks, [&](Communicator& comm) { run(script_net(), comm, "script"); });
  testing::run_threads(ranks, [&](Communicator& comm) { run(list_net(), comm, "list"); });
}

// Trains; forward(x) computes, after_backward() comes before each step.
template <typename M, typename Forward, typename After>
void train(M& model, Communicator& comm, const Forward& forward, const After& after_backward) {
  torch::optim::SGD optimizer(values_of(parameters_of(model)),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto part = samples(kRows).chunk(comm.size())[comm.rank()] + step;
    output_of(forward(part)).pow(2).mean().backward();
    after_backward();
    optimizer.step();
  }
}

// Ranks that start with other values than rank 0.
template <typename M>
void spoil(const M& model, Communicator& comm) {
  const torch::NoGradGuard no_grad;
  if (comm.rank() == 0) return;
  for (const auto& entry : state_of(model)) at::Tensor(entry.second).add_(comm.rank());
}

TEST(KindsOfModels, DdpEqualsOneProcess) {
  with_each_kind(3, [](auto model, Communicator& comm, const std::string& what) {
    spoil(model, comm);
    DistributedDataParallel ddp(model, comm);
    train(model, comm, [&](const at::Tensor& x) { return ddp(x); }, [] {});
    expect_as_alone(parameters_of(model), what);
    EXPECT_GT(ddp.bucket_count(), 0u) << what;
  });
}

TEST(KindsOfModels, AverageGradientsEqualsOneProcess) {
  with_each_kind(3, [](auto model, Communicator& comm, const std::string& what) {
    spoil(model, comm);
    broadcast_parameters(model, comm);
    auto& module = module_in(model);
    train(
        model, comm, [&](const at::Tensor& x) { return flat::forward_of(module, x); },
        [&] { average_gradients(model, comm); });
    expect_as_alone(parameters_of(model), what);
  });
}

TEST(KindsOfModels, GradientAveragerEqualsOneProcess) {
  with_each_kind(3, [](auto model, Communicator& comm, const std::string& what) {
    spoil(model, comm);
    broadcast_parameters(model, comm);
    auto& module = module_in(model);
    GradientAverager averager(model, comm);
    train(
        model, comm,
        [&](const at::Tensor& x) {
          averager.before_forward(model);
          return flat::forward_of(module, x);
        },
        [] {});
    expect_as_alone(parameters_of(model), what);
    EXPECT_GT(averager.bucket_count(), 0u) << what;
  });
}

// By the number of rows of the forward's tensors, which lie in a list of values there; the output's
// gradients are weighed.
TEST(KindsOfModels, UnequalBatchesCountByTheirRows) {
  with_each_kind(2, [](auto model, Communicator& comm, const std::string& what) {
    DistributedDataParallel ddp(model, comm, {.divide_by = DivideBy::kSamples});
    const auto part =
        comm.rank() == 0 ? samples(kRows).narrow(0, 0, 9) : samples(kRows).narrow(0, 9, 3);
    output_of(ddp(part)).pow(2).mean().backward();
    Net alone;
    alone(samples(kRows)).pow(2).mean().backward();
    const NamedTensors got = parameters_of(model), expected = parameters_of(alone);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LT(
          (got[i].second.grad() - expected[i].second.grad()).abs().max().template item<double>(),
          1e-10)
          << what << ", " << got[i].first;
    }
  });
}

TEST(KindsOfModels, AScriptsListOfValuesAndItsTuple) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::jit::Module net("Pair");
    net.register_parameter("w", torch::ones({2}, torch::kDouble).set_requires_grad(true), false);
    net.define(R"(
def forward(self, x, scale: float):
    return (x * self.w * scale, {"sum": (x + self.w).sum()})
)");
    DistributedDataParallel ddp(net, comm, {.divide_by = DivideBy::kSamples});
    const auto x = torch::ones({comm.rank() == 0 ? 3 : 1, 2}, torch::kDouble);
    const c10::IValue output = ddp(std::vector<c10::IValue>{x, 2.0});
    const auto first = output.toTupleRef().elements()[0].toTensor();
    const auto sum = output.toTupleRef().elements()[1].toGenericDict().at("sum").toTensor();
    (first.mean() + sum / (2 * x.size(0))).backward();
    // Means over 3 rows and 1: 2 / 2 + 1 / 2 an element, on each rank, whatever the weights.
    EXPECT_TRUE(
        torch::allclose(net.attr("w").toTensor().grad(), torch::full({2}, 1.5, torch::kDouble)));
  });
}

// Ranks of a sub-group, of which the last has no samples in the end.
TEST(KindsOfModels, JoinOverASubGroup) {
  testing::run_threads(4, [](Communicator& comm) {
    auto trainers = comm.split(comm.rank() < 3 ? 0 : -1, comm.rank());
    if (trainers) {
      torch::jit::Module net = script_net();
      DistributedDataParallel ddp(net, *trainers);
      torch::optim::SGD optimizer(values_of(parameters_of(net)), torch::optim::SGDOptions(0.1));
      auto join = ddp.join();
      for (int step = 0; step < 2 * trainers->rank(); ++step) {  // 0, 2 and 4 batches
        optimizer.zero_grad();
        ddp(samples(4) + step).toTensor().pow(2).mean().backward();
        optimizer.step();
      }
      join.finish([&] { optimizer.step(); });
      Net alone;
      torch::optim::SGD same(alone->parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 4; ++step) {  // all who have a batch have the same one
        same.zero_grad();
        alone(samples(4) + step).pow(2).mean().backward();
        same.step();
      }
      const NamedTensors got = parameters_of(net), expected = parameters_of(alone);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(torch::allclose(got[i].second, expected[i].second, 1e-10, 1e-12))
            << got[i].first << " on rank " << comm.rank();
      }
    }
    comm.barrier();
  });
}

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

TEST(KindsOfModels, AFrozenScriptIsNamed) {
  testing::run_threads(1, [](Communicator& comm) {
    torch::jit::Module net = script_net();
    net.eval();
    torch::jit::Module frozen = torch::jit::freeze(net);
    ASSERT_TRUE(parameters_of(frozen).empty());
    const auto expected = AllOf(HasSubstr("the model has no parameters"),
                                HasSubstr("torch.jit.freeze()"), HasSubstr("constants"));
    EXPECT_THAT(message_of([&] { DistributedDataParallel ddp(frozen, comm); }), expected);
    EXPECT_THAT(message_of([&] { GradientAverager averager(frozen, comm); }), expected);
    for (const auto& entry : parameters_of(net)) entry.second.set_requires_grad(false);
    EXPECT_THAT(message_of([&] { DistributedDataParallel ddp(net, comm); }),
                AllOf(HasSubstr("none of the model's 3 parameters requires a gradient"),
                      HasSubstr("TorchScript file")));
    EXPECT_THAT(message_of([&] { GradientAverager averager(NamedTensors{}, comm); }),
                HasSubstr("the list of named tensors is empty"));
  });
}

// The report at the next forward about a script that `change` has changed since.
std::string said_of_script(const std::function<void(torch::jit::Module&)>& change) {
  std::string said;
  testing::run_threads(1, [&](Communicator& comm) {
    torch::jit::Module net = script_net();
    parameters_of(net)[1].second.set_requires_grad(false);  // b1
    DistributedDataParallel ddp(net, comm);
    ddp(samples(2));
    change(net);
    said = message_of([&] { ddp(samples(2)); });
  });
  return said;
}

TEST(KindsOfModels, AChangedScriptIsNamed) {
  EXPECT_THAT(said_of_script([](torch::jit::Module& net) {
                net.register_parameter("more", torch::ones({1}), false);
              }),
              HasSubstr("parameter 'more' was added after the model was wrapped"));
  EXPECT_THAT(said_of_script([](torch::jit::Module& net) {
                net.setattr("w2", torch::ones({8, 3}, torch::kDouble));
              }),
              HasSubstr("parameter 'w2' is another tensor than the one that was wrapped"));
  EXPECT_THAT(said_of_script([](torch::jit::Module& net) {
                net.attr("b1").toTensor().set_requires_grad(true);
              }),
              HasSubstr("parameter 'b1' required no gradient when it was wrapped"));
  EXPECT_THAT(said_of_script([](torch::jit::Module& net) { net.to(torch::kFloat); }),
              HasSubstr("parameter 'w1' was Double [6, 8] on cpu when it was wrapped"));
}

TEST(KindsOfModels, AChangedListIsNamed) {
  testing::run_threads(1, [](Communicator& comm) {
    auto model = list_net();
    NamedTensors parameters = parameters_of(model);
    GradientAverager averager(parameters, comm);
    averager.before_forward(parameters);
    parameters.emplace_back("more", torch::ones({1}));
    EXPECT_THAT(message_of([&] { averager.before_forward(parameters); }),
                HasSubstr("GradientAverager: parameter 'more' was added"));
    parameters.pop_back();
    parameters[0].second = torch::ones({6, 8}, torch::kDouble);
    EXPECT_THAT(message_of([&] { averager.before_forward(parameters); }),
                HasSubstr("parameter 'w1' is another tensor"));
    parameters.erase(parameters.begin());
    EXPECT_THAT(message_of([&] { averager.before_forward(parameters); }),
                HasSubstr("parameter 'w1' is no longer in the model"));
  });
}

TEST(KindsOfModels, AnotherShapeOnOneRankIsNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::jit::Module net("Net");
    net.register_parameter("w", torch::ones({2 + comm.rank(), 3}).set_requires_grad(true), false);
    net.define("def forward(self, x):\n    return x.matmul(self.w)\n");
    for (const bool wraps : {true, false}) {
      try {
        if (wraps)
          DistributedDataParallel ddp(net, comm);
        else
          GradientAverager averager(net, comm);
        ADD_FAILURE() << "no Mismatch";
      } catch (const Mismatch& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("w float32"), HasSubstr("[2, 3]"),
                                        HasSubstr("[3, 3]"), HasSubstr("rank 1")));
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::inline v0::kinds_of_models_test
