#include "lockstep/flat/wrapped_parameters.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::flat_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::Linear;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", Linear(2, 3));
    rest = register_module("rest", torch::nn::Sequential(Linear(3, 2)));
    shift = register_parameter("shift", at::ones({2}), /*requires_grad=*/false);
  }
  Linear first{nullptr};
  torch::nn::Sequential rest{nullptr};
  at::Tensor shift;
};
TORCH_MODULE(Net);

// The report about a net that `change` has changed since it was wrapped; "" if there is none.
template <typename Change>
std::string said_after(const Change& change) {
  Net net;
  const flat::WrappedParameters wrapped("Wrapper", parameters_of(net));
  wrapped.check(*net);
  change(net);
  std::string said;
  try {
    wrapped.check(*net);
  } catch (const InvalidArgument& error) {
    said = error.what();
  }
  return said;
}

TEST(WrappedParameters, WhatChangesAModelIsNamed) {
  EXPECT_EQ(said_after([](Net& net) { net->shift.set_requires_grad(true); }),
            "Wrapper: parameter 'shift' required no gradient when it was wrapped and requires one "
            "now; change the model before it is wrapped, or wrap it again");
  EXPECT_THAT(said_after([](Net& net) { net->rest->push_back(Linear(2, 2)); }),
              HasSubstr("parameter 'rest.1.weight' was added after the model was wrapped"));
  EXPECT_THAT(said_after([](Net& net) { net->register_parameter("more", at::ones({1})); }),
              HasSubstr("parameter 'more' was added"));
  EXPECT_THAT(
      said_after([](Net& net) { net->first = net->replace_module("first", Linear(2, 3)); }),
      HasSubstr("parameter 'first.weight' is another tensor than the one that was wrapped"));
  EXPECT_THAT(said_after([](Net& net) { net->unregister_module("rest"); }),
              HasSubstr("parameter 'rest.0.weight' is no longer in the model"));
  EXPECT_THAT(said_after([](Net& net) { net = Net(); }),
              HasSubstr("parameter 'shift' is another tensor"));
  EXPECT_THAT(said_after([](Net& net) { net->to(at::kDouble); }),
              AllOf(HasSubstr("parameter 'shift' was Float [2] on cpu when it was wrapped"),
                    HasSubstr("is Double [2] on cpu now")));
  EXPECT_THAT(said_after([](Net& net) { net->first->bias.set_data(at::ones({4})); }),
              HasSubstr("parameter 'first.bias' was Float [3] on cpu when it was wrapped and is "
                        "Float [4] on cpu now"));
}

// The dtype is the same as before, but hooks on the gradients are lost.
TEST(WrappedParameters, AConversionThereAndBackIsNamed) {
  EXPECT_THAT(said_after([](Net& net) {
                net->to(at::kDouble);
                net->to(at::kFloat);
              }),
              HasSubstr("parameter 'first.weight' has been of another type or device since"));
}

TEST(WrappedParameters, WhatChangesNothingForAWrapperIsFree) {
  EXPECT_EQ(said_after([](Net& net) {
              for (at::Tensor& p : net->parameters()) p.set_requires_grad(false);  // frozen
              net->first->weight.set_requires_grad(true);  // and no longer frozen
              net->to(at::kFloat);
              net->eval();
              net->register_buffer("seen", at::ones({1}));
              const at::NoGradGuard no_grad;
              net->first->weight.set_data(net->first->weight.detach().clone());
              net->first->bias.fill_(3);
              net->unregister_module("rest");
              net->register_module("rest", net->rest);
            }),
            "");
}

TEST(WrappedParameters, AModelThatTrainsNothingIsRefused) {
  Net net;
  for (at::Tensor& p : net->parameters()) p.set_requires_grad(false);
  const auto said = [](const NamedTensors& parameters) {
    return message_of<InvalidArgument>(
        [&] { flat::WrappedParameters("Wrapper", parameters).check_trained(); });
  };
  EXPECT_THAT(said(parameters_of(net)),
              AllOf(HasSubstr("Wrapper: none of the model's 5 parameters requires a gradient"),
                    HasSubstr("register_module()")));
  EXPECT_THAT(said({}), AllOf(HasSubstr("Wrapper: the model has no parameters"),
                              HasSubstr("register_module()")));
}

}  // namespace
}  // namespace lockstep::inline v0::flat_test
