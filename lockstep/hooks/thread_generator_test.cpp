#include "lockstep/hooks/thread_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <thread>

#include "lockstep/hooks/layer_hook.h"

namespace lockstep::inline v0::hooks {
namespace {

TEST(ThreadGenerator, DrawsFromItsOwn) {
  torch::manual_seed(4);
  const at::Tensor expected = torch::rand({8});
  torch::manual_seed(9);
  const at::Tensor before = torch::rand({8});
  torch::manual_seed(9);
  at::Generator own = at::detail::createCPUGenerator(4);
  int asked = 0;
  at::Tensor found;
  std::thread([&] {
    const ThreadGenerator here([&]() -> const at::Generator& {
      ++asked;
      return own;
    });
    EXPECT_EQ(asked, 0);
    found = torch::rand({8});
  }).join();
  EXPECT_TRUE(torch::equal(found, expected));
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(torch::equal(torch::rand({8}), before)) << "the default generator was left alone";
}

TEST(ThreadGenerator, TheInnermostCounts) {
  at::Generator outer = at::detail::createCPUGenerator(4),
                inner = at::detail::createCPUGenerator(9);
  const auto drawn = [](at::Generator from) { return torch::rand({8}, from); };
  const at::Tensor of_outer = drawn(outer.clone()), of_inner = drawn(inner.clone());
  const ThreadGenerator here([&]() -> const at::Generator& { return outer; });
  {
    const ThreadGenerator within([&]() -> const at::Generator& { return inner; });
    EXPECT_TRUE(torch::equal(torch::rand({8}), of_inner));
  }
  EXPECT_TRUE(torch::equal(torch::rand({8}), of_outer));
}

TEST(ThreadGenerator, OtherDevicesDrawFromTheirOwn) {
  at::Generator own = at::detail::createCPUGenerator(4);
  int asked = 0;
  const ThreadGenerator here([&]() -> const at::Generator& {
    ++asked;
    return own;
  });
  (void)torch::rand({8}, at::kMeta);
  (void)torch::empty({8}, at::kMeta).bernoulli_(0.5);
  EXPECT_EQ(asked, 0);
  (void)torch::empty({8}).bernoulli_(0.5);
  EXPECT_EQ(asked, 1);
}

TEST(ThreadGenerator, GoesWithHooks) {
  torch::nn::Linear layer(4, 4);
  struct Dropping final : LayerHook {
    at::Tensor forward(LayerCall& call) override {
      return at::dropout(call.compute(call.input()), 0.5, true);
    }
  };
  add_hook(*layer, std::make_shared<Dropping>());
  const at::Tensor x = torch::randn({2, 3, 4});
  const auto run = [&] {
    at::Generator own = at::detail::createCPUGenerator(4);
    const ThreadGenerator here([&]() -> const at::Generator& { return own; });
    return layer(x);
  };
  const at::Tensor once = run();
  torch::rand({3});
  EXPECT_TRUE(torch::equal(run(), once));
}

}  // namespace
}  // namespace lockstep::inline v0::hooks
