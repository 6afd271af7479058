// How a training loop is tested (docs/fake-cuda.md).
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/testing/fake_cuda/fake_cuda.h"

namespace lockstep::inline v0::testing {
namespace {

TEST(FakeCudaExample, AStepStopsNoHostAndHasNoRace) {
  FakeCuda& cuda = FakeCuda::install({.devices = 3});
  torch::cuda::synchronize();  // what other tests have left behind
  cuda.take_races();
  torch::nn::Linear model(4, 2);
  model->to(torch::kCUDA);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const at::Tensor batch = torch::randn({8, 4}, torch::kCUDA);

  Counting counted;
  optimizer.zero_grad();
  model(batch).square().mean().backward();
  optimizer.step();
  EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
  for (const Race& race : cuda.take_races()) ADD_FAILURE() << race.text();
}

TEST(FakeCudaExample, AMissingWaitIsSeen) {
  FakeCuda& cuda = FakeCuda::install({.devices = 3});
  torch::cuda::synchronize();  // what other tests have left behind
  cuda.take_races();
  const at::Tensor batch = torch::ones({8}, torch::kCUDA);
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  const c10::StreamGuard on_side(device.getStreamFromGlobalPool(batch.device()));
  batch.mul_(2);  // the stream has not waited for what makes the batch
  EXPECT_EQ(cuda.take_races().size(), 1u);
  torch::cuda::synchronize();  // so that the memory may be given back
}

}  // namespace
}  // namespace lockstep::inline v0::testing
