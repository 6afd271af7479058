// The CPU as a device: code for devices also runs on it.
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/device/current.h"
#include "lockstep/device/event.h"
#include "lockstep/device/generator_state.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"
#include "lockstep/device/timer.h"

namespace lockstep::inline v0::device {
namespace {

TEST(HostDevice, NothingIsUnderWay) {
  set_current(at::kCPU);
  EXPECT_EQ(current(at::kCPU), at::Device(at::kCPU));
  synchronize(at::kCPU);
  const c10::Stream side = side_stream(at::kCPU);
  EXPECT_EQ(side, current_stream(at::kCPU));
  const c10::StreamGuard on_side(side);
  order(side, side);
  Event event(at::kCPU);
  EXPECT_TRUE(event.reached());
  event.record();
  event.record(side);
  event.block(side);
  event.synchronize();
  EXPECT_TRUE(event.reached());
}

TEST(HostDevice, TimesTheHost) {
  DeviceTimer timer(at::kCPU);
  EXPECT_EQ(timer.seconds(), std::nullopt);
  EXPECT_THROW(timer.stop(), InvalidArgument);
  EXPECT_THROW(timer.wait(), InvalidArgument);
  timer.start();
  EXPECT_EQ(timer.seconds(), std::nullopt);
  timer.stop();
  ASSERT_TRUE(timer.seconds());
  EXPECT_GE(*timer.seconds(), 0);
  EXPECT_EQ(timer.wait(), *timer.seconds());
  EXPECT_THROW(timer.stop(), InvalidArgument);
}

TEST(HostDevice, ItsMemoryIsTheProcesss) {
  EXPECT_FALSE(memory_use(at::kCPU));
  reset_peak_memory(at::kCPU);
  const at::Tensor plain = empty_pinned({2, 3}, at::kDouble, at::kCPU);
  EXPECT_FALSE(plain.is_pinned());
  EXPECT_EQ(plain.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(plain.scalar_type(), at::kDouble);
}

TEST(HostDevice, ItsGeneratorGoesOnWhereItWas) {
  const at::Tensor state = generator_state(at::kCPU);
  const at::Tensor drawn = at::rand({10});
  EXPECT_FALSE(at::equal(generator_state(at::kCPU), state));
  set_generator_state(at::kCPU, state);
  EXPECT_TRUE(at::equal(at::rand({10}), drawn));
  EXPECT_THROW(set_generator_state(at::kCPU, at::zeros({3})), InvalidArgument);
}

TEST(HostDevice, OtherDevicesAreNotThere) {
  EXPECT_THROW(set_current(at::Device(at::kHPU, 0)), InvalidArgument);
  EXPECT_THROW(Event event(at::kHPU), InvalidArgument);
  EXPECT_THROW(memory_use(at::kHPU), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::device
