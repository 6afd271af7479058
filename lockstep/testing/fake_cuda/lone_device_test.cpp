// A rank that is alone on a device.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/device/stream.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::inline v0::testing {
namespace {

using ::testing::HasSubstr;

class LoneDevice : public WithoutRaces {
 protected:
  Communicator comm_ = init({.device = "cuda:1"});
  at::Tensor numbers(int64_t count) const {
    return at::arange(count, at::TensorOptions(at::kFloat).device(comm_.device()));
  }
};

TEST_F(LoneDevice, GetsWhatItGivesAndTheHostNeverWaits) {
  EXPECT_EQ(comm_.device(), at::Device(at::kCUDA, 1));
  const at::Tensor sum = numbers(5), shown = numbers(5), halves = numbers(6);
  at::Tensor gathered, scattered, exchanged;
  {
    const Counting counting;
    comm_.all_reduce(sum);
    comm_.all_reduce(shown, ReduceOp::kMax);
    comm_.broadcast(shown, 0);
    gathered = comm_.all_gather(numbers(4));
    scattered = comm_.reduce_scatter(halves);
    exchanged = comm_.all_to_all(numbers(3));
    Work later = comm_.iall_reduce(halves, ReduceOp::kAvg);
    later.wait();
    comm_.barrier();
    EXPECT_EQ(counting.stops(), 0) << counting.counts().text();
  }
  EXPECT_TRUE(sum.cpu().equal(at::arange(5, at::kFloat)));
  EXPECT_TRUE(gathered.cpu().view({-1}).equal(at::arange(4, at::kFloat)));
  EXPECT_TRUE(scattered.cpu().view({-1}).equal(at::arange(6, at::kFloat)));
  EXPECT_TRUE(exchanged.cpu().view({-1}).equal(at::arange(3, at::kFloat)));
  EXPECT_TRUE(halves.cpu().equal(at::arange(6, at::kFloat)));
}

// The host's tensors go by the engine beside it.
TEST_F(LoneDevice, TheHostsTensorsGiveTheDeviceNothing) {
  const Counting counting;
  const at::Tensor words = at::full({2}, 3.0);
  comm_.all_reduce(words);
  EXPECT_EQ(words[0].item<double>(), 3.0);
  EXPECT_EQ(counting.operations(), 0);
}

// Which comes behind what the caller's stream had, and before what it is given next.
TEST_F(LoneDevice, ACallOnOneStreamIsWaitedForOnAnother) {
  const c10::Stream side = device::side_stream(comm_.device());
  at::Tensor made;
  Work work;
  {
    const c10::StreamGuard on_side(side);
    made = numbers(7).mul(2);
    work = comm_.iall_reduce(made);
  }
  work.wait();
  EXPECT_TRUE(made.add(1).cpu().equal(at::arange(7, at::kFloat) * 2 + 1));
}

TEST_F(LoneDevice, ItsGroupsAreLikeIt) {
  Communicator twin = comm_.duplicate();
  EXPECT_EQ(twin.device(), comm_.device());
  const Counting counting;
  const at::Tensor tensor = numbers(2);
  twin.all_reduce(tensor);
  EXPECT_EQ(counting.stops(), 0) << counting.counts().text();
}

TEST_F(LoneDevice, NobodyIsThereToSendTo) {
  const at::Tensor tensor = numbers(2);
  EXPECT_THAT(message_of<InvalidArgument>([&] { comm_.send(tensor, 0); }), HasSubstr("send"));
}

}  // namespace
}  // namespace lockstep::inline v0::testing
