// Models that a wrapper refuses, or that change after they were wrapped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/ddp/ddp_test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::changed_models_test {
namespace {

using namespace ddp_test_support;
using ::testing::HasSubstr;
using torch::nn::Linear;

// Each forward repeats the checks that were made when the model was wrapped.
TEST(Ddp, AModelThatChangesAfterItWasWrappedIsNamed) {
  testing::run_threads(2, [](Communicator& comm) {
    const auto said_after = [&](const auto& change) {
      Net net = make_net();
      net->spare->bias.set_requires_grad(false);
      DistributedDataParallel model(net, comm);
      model(batch(2)).sum().backward();
      change(net);
      const auto said = message_of<InvalidArgument>([&] { model(batch(2)); });
      const torch::NoGradGuard no_grad;
      EXPECT_NO_THROW(net->forward(batch(2).to(net->first->weight.dtype())));
      return said;
    };
    EXPECT_THAT(said_after([](Net& net) { net->spare->bias.set_requires_grad(true); }),
                HasSubstr("DistributedDataParallel: parameter 'spare.bias' required no gradient"));
    EXPECT_THAT(said_after([](Net& net) { net->register_module("more", Linear(2, 2)); }),
                HasSubstr("'more.weight' was added"));
    EXPECT_THAT(
        said_after([](Net& net) { net->second = net->replace_module("second", Linear(8, 4)); }),
        HasSubstr("'second.weight' is another tensor"));
    EXPECT_THAT(
        said_after([](Net& net) { net->to(torch::kDouble); }),
        HasSubstr("'first.weight' was Float [8, 6] on cpu when it was wrapped and is Double"));
    EXPECT_THAT(said_after([](Net& net) {
                  net->to(torch::kDouble);
                  net->to(torch::kFloat);
                }),
                HasSubstr("'first.weight' has been of another type"));
  });
}

TEST(Ddp, ALayerMayBeFrozenForAWhile) {
  testing::run_threads(2, [](Communicator& comm) {
    Net net = make_net();
    DistributedDataParallel model(net, comm);
    const auto mine = batch(4).chunk(2)[comm.rank()];
    for (const bool trained : {true, false, true}) {
      net->zero_grad();
      net->first->weight.set_requires_grad(trained);
      model(mine).pow(2).mean().backward();
      EXPECT_EQ(net->first->weight.grad().defined(), trained);
      expect_close(net->second->weight.grad(), reference(4)->second->weight.grad(), "second");
      if (trained)
        expect_close(net->first->weight.grad(), reference(4)->first->weight.grad(), "first");
    }
  });
}

TEST(Ddp, AModelThatTrainsNothingIsRefused) {
  struct ForgetfulImpl : torch::nn::Module {
    torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
    Linear layer{2, 2};  // never registered
  };
  testing::run_threads(2, [](Communicator& comm) {
    EXPECT_THAT(
        message_of<InvalidArgument>(
            [&] { DistributedDataParallel(std::make_shared<ForgetfulImpl>(), comm); }),
        HasSubstr("DistributedDataParallel: the model has no parameters; register_module()"));
    Net net = make_net();
    for (auto& p : net->parameters()) p.set_requires_grad(false);
    EXPECT_THAT(message_of<InvalidArgument>([&] { DistributedDataParallel(net, comm); }),
                HasSubstr("none of the model's 6 parameters requires a gradient"));
  });
}

// A layer that is registered in two places.
TEST(Ddp, ATiedParameterIsAveragedOnce) {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      layer = register_module("a", Linear(6, 6));
      register_module("b", layer);
    }
    torch::Tensor forward(const torch::Tensor& x) { return layer(torch::tanh(layer(x))); }
    Linear layer{nullptr};
  };
  const auto make = [] {
    const auto net = std::make_shared<TiedImpl>();
    const torch::NoGradGuard no_grad;
    for (auto& p : net->parameters()) p.copy_(torch::linspace(-1, 1, p.numel()).view(p.sizes()));
    return net;
  };
  const auto one = make();
  one->forward(batch(4)).pow(2).mean().backward();
  testing::run_threads(2, [&](Communicator& comm) {
    DistributedDataParallel model(make(), comm, {.bucket_sizes = {.first = 4, .rest = 4}});
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      model(batch(4).chunk(2)[comm.rank()]).pow(2).mean().backward();
      expect_close(model->layer->weight.grad(), one->layer->weight.grad(), "weight");
      expect_close(model->layer->bias.grad(), one->layer->bias.grad(), "bias");
      EXPECT_EQ(model.bucket_count(), 2u);
    }
  });
}

}  // namespace
}  // namespace lockstep::inline v0::changed_models_test
