#include "lockstep/replicas/broadcast_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "lockstep/core/errors.h"
#include "lockstep/flat/tensor_model.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::broadcast_parameters_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename M>
void expect_the_roots(const M& model, Communicator& comm, size_t tensors) {
  const NamedTensors state = state_of(model);
  EXPECT_EQ(state.size(), tensors);
  {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : state) at::Tensor(tensor).fill_(comm.rank());
  }
  broadcast_parameters(model, comm, 2);
  for (const auto& [name, tensor] : state)
    EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, 2))) << name;
}

TEST(BroadcastParameters, OfModelsOfEveryKind) {
  testing::run_threads(3, [](Communicator& comm) {
    const torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    expect_the_roots(net, comm, 7);
    expect_the_roots(*net, comm, 7);
    torch::jit::Module inner("Inner"), script("Net");
    inner.register_parameter("w", torch::ones({3, 4}).set_requires_grad(true), false);
    script.register_module("inner", inner);
    script.register_buffer("mean", torch::ones({4}));
    expect_the_roots(script, comm, 2);
    expect_the_roots(std::make_shared<torch::jit::Module>(script), comm, 2);
    const at::Tensor w = torch::ones({3}).set_requires_grad(true);
    expect_the_roots(
        TensorModel({{"w", w}}, [w] { return w; }, {{"mean", torch::ones({2}, torch::kLong)}}),
        comm, 2);
  });
}

TEST(BroadcastParameters, NamesAnotherShapeAndNothingAtAll) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::jit::Module script("Net");
    script.register_parameter("w", torch::ones({3, 4 + comm.rank()}), false);
    try {
      broadcast_parameters(script, comm);
      ADD_FAILURE() << "no error";
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("w float32"), HasSubstr("[3, 4]"),
                                      HasSubstr("[3, 5]"), HasSubstr("rank 1")));
    }
    try {
      broadcast_parameters(torch::jit::Module("Frozen"), comm);
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("no parameters"), HasSubstr("torch.jit.freeze")));
    }
    comm.barrier();  // the ranks are still in step
  });
}

}  // namespace
}  // namespace lockstep::inline v0::broadcast_parameters_test
