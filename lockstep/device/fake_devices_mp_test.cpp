// The room on fake CUDA devices: one, two and four, each in a process of its own.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/device/choose.h"
#include "lockstep/device/current.h"
#include "lockstep/device/event.h"
#include "lockstep/device/failure.h"
#include "lockstep/device/generator_state.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"
#include "lockstep/device/timer.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::device {
namespace {

using testing::Counting;
using testing::FakeCuda;
using testing::HostStop;

at::Device cuda(int number) {
  return {at::kCUDA, static_cast<at::DeviceIndex>(number)};
}

class OnFakeDevices : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  }
  // Runs `fn` with this many devices, and checks for races at its end.
  static void run(const std::function<void(FakeCuda& fake)>& fn) {
    testing::expect_lone_ranks(1, [&] {
      FakeCuda& fake = FakeCuda::install({.devices = GetParam()});
      fn(fake);
      for (const testing::Race& race : fake.take_races()) ADD_FAILURE() << race.text();
    });
  }
  static int last() { return GetParam() - 1; }
};

INSTANTIATE_TEST_SUITE_P(Devices, OnFakeDevices, ::testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(OnFakeDevices, AreVisible) {
  run([](FakeCuda&) {
    EXPECT_TRUE(visible_devices().has_cuda);
    EXPECT_EQ(visible_devices().cuda, GetParam());
    for (int local_rank = 0; local_rank < 5; ++local_rank) {
      EXPECT_EQ(choose_device("cuda", local_rank), cuda(local_rank % GetParam()));
      EXPECT_EQ(choose_device("auto", local_rank), cuda(local_rank % GetParam()));
    }
    EXPECT_EQ(choose_device("cpu", 1), at::Device(at::kCPU));
    EXPECT_THROW(choose_device("cuda:" + std::to_string(GetParam()), 0), InvalidArgument);
  });
}

TEST_P(OnFakeDevices, TheCurrentOneIsTheThreads) {
  run([](FakeCuda&) {
    EXPECT_EQ(current(at::kCUDA), cuda(0));
    set_current(cuda(last()));
    EXPECT_EQ(current(at::kCUDA), cuda(last()));
    EXPECT_EQ(at::empty({1}, at::kCUDA).device(), cuda(last()));
    EXPECT_EQ(current_stream(at::kCUDA).device(), cuda(last()));
    set_current(at::kCPU);
    set_current(at::kCUDA);
    EXPECT_EQ(current(at::kCUDA), cuda(last()));
    std::thread([] { EXPECT_EQ(current(at::kCUDA), cuda(0)); }).join();
    EXPECT_THROW(set_current(cuda(GetParam())), InvalidArgument);
    EXPECT_EQ(current(at::kCUDA), cuda(last()));
  });
}

TEST_P(OnFakeDevices, StreamsAreOrderedByEvents) {
  run([](FakeCuda& fake) {
    for (int number = 0; number < GetParam(); ++number) {
      const at::Tensor value = at::full({4}, 1.0, cuda(number));
      const c10::Stream main = current_stream(cuda(number));
      const c10::Stream side = side_stream(cuda(number));
      EXPECT_NE(main, side);
      EXPECT_EQ(side.device(), cuda(number));
      Counting counted;
      order(main, side);
      {
        const c10::StreamGuard on_side(side);
        EXPECT_EQ(current_stream(cuda(number)), side);
        value.mul_(2);
      }
      EXPECT_EQ(current_stream(cuda(number)), main);
      Event done(cuda(number));
      EXPECT_TRUE(done.reached()) << "nothing to be reached yet";
      done.record(side);
      done.block(main);
      value.add_(1);
      EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
      EXPECT_TRUE(fake.take_races().empty());
      EXPECT_EQ(value.sum().item<double>(), 12);

      // Without an event this is a race.
      value.add_(1);
      {
        const c10::StreamGuard on_side(side);
        value.mul_(2);
      }
      EXPECT_FALSE(fake.take_races().empty());
      synchronize(cuda(number));
    }
  });
}

TEST_P(OnFakeDevices, TheHostWaitsWhereItSaysSo) {
  run([](FakeCuda&) {
    const at::Tensor value = at::full({4}, 1.0, cuda(last()));
    Counting counted;
    Event event(cuda(last()));
    event.record();  // on the stream of its device, whatever the current one is
    EXPECT_TRUE(event.reached());
    EXPECT_EQ(counted.stops(), 0);
    Event moved = std::move(event);
    moved.synchronize();
    EXPECT_EQ(counted.stops(HostStop::kEvent), 1);
    synchronize(cuda(last()));
    EXPECT_EQ(counted.stops(HostStop::kDevice), 1);
    EXPECT_EQ(counted.stops(), 2);
  });
}

TEST_P(OnFakeDevices, TimersStopNoHost) {
  run([](FakeCuda&) {
    const at::Tensor value = at::full({4}, 1.0, cuda(last()));
    DeviceTimer timer(cuda(last()));
    EXPECT_EQ(timer.seconds(), std::nullopt);
    EXPECT_THROW(timer.stop(), InvalidArgument);
    EXPECT_THROW(timer.wait(), InvalidArgument);
    for (int i = 0; i < 2; ++i) {
      Counting counted;
      timer.start();
      EXPECT_EQ(timer.seconds(), std::nullopt);
      value.mul_(2);
      timer.stop();
      const auto seconds = timer.seconds();
      EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
      ASSERT_TRUE(seconds);
      EXPECT_GE(*seconds, 0);
      EXPECT_EQ(timer.wait(), *seconds);
    }
  });
}

TEST_P(OnFakeDevices, MemoryIsCountedByDevice) {
  run([](FakeCuda&) {
    const int64_t before = memory_use(cuda(last()))->in_use;
    constexpr int64_t kBytes = int64_t{1} << 20;
    {
      const at::Tensor big = at::empty({kBytes}, at::TensorOptions(cuda(last())).dtype(at::kByte));
      EXPECT_EQ(memory_use(cuda(last()))->in_use, before + kBytes);
      if (last() > 0) {
        EXPECT_EQ(memory_use(cuda(0))->in_use, 0);
      }
    }
    const auto after = memory_use(cuda(last()));
    EXPECT_EQ(after->in_use, before);
    EXPECT_EQ(after->peak, before + kBytes);
    EXPECT_GE(after->reserved, after->in_use);
    reset_peak_memory(cuda(last()));
    EXPECT_EQ(memory_use(cuda(last()))->peak, before);
    EXPECT_THROW(memory_use(cuda(GetParam())), InvalidArgument);
  });
}

TEST_P(OnFakeDevices, PinnedMemoryIsCopiedWithoutAStop) {
  run([](FakeCuda&) {
    const at::Tensor host = empty_pinned({100}, at::kFloat, cuda(last()));
    EXPECT_TRUE(host.is_pinned());
    host.fill_(3);
    Counting counted;
    const at::Tensor there = host.to(cuda(last()), /*non_blocking=*/true);
    const at::Tensor back = empty_pinned({100}, at::kFloat, cuda(last()));
    back.copy_(there, /*non_blocking=*/true);
    Event copied(cuda(last()));
    copied.record();
    EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
    copied.synchronize();
    EXPECT_TRUE(at::equal(back, host));
  });
}

TEST_P(OnFakeDevices, GeneratorsGoOnWhereTheyWere) {
  run([](FakeCuda&) {
    const auto draw = [](int number) {
      return at::rand({10}, at::TensorOptions(cuda(number))).cpu();
    };
    const at::Tensor host = generator_state(at::kCPU);
    const at::Tensor state = generator_state(cuda(last()));
    const at::Tensor first = draw(last());
    EXPECT_FALSE(at::equal(draw(last()), first));
    set_generator_state(cuda(last()), state);
    if (last() > 0) draw(0);  // drawing on another device does not change this one's generator
    EXPECT_TRUE(at::equal(draw(last()), first));
    EXPECT_TRUE(at::equal(generator_state(at::kCPU), host)) << "the CPU's is another one";
    const at::Tensor now = generator_state(cuda(last()));
    EXPECT_THROW(set_generator_state(cuda(last()), at::zeros({3})), InvalidArgument);
    EXPECT_TRUE(at::equal(generator_state(cuda(last())), now));
  });
}

TEST_P(OnFakeDevices, AFailureIsToldFromOtherErrors) {
  testing::expect_lone_ranks(1, [] {
    FakeCuda::install({.devices = GetParam(), .failing_device = last(), .fails_at = 3});
    set_current(cuda(last()));
    try {
      at::empty({int64_t{1} << 40}, at::kCUDA);
      ADD_FAILURE() << "there is no such memory";
    } catch (const std::exception& error) {
      EXPECT_FALSE(device_failure(error)) << error.what();
    }
    const at::Tensor ones = at::full({4}, 1.0, at::kCUDA);  // its first operation
    EXPECT_NO_THROW(throw_if_failed(cuda(last())));
    ones.add_(1);
    try {
      ones.add_(1);
      ADD_FAILURE() << "the device should have failed";
    } catch (const std::exception& error) {
      const auto failure = device_failure(error);
      ASSERT_TRUE(failure) << error.what();
      EXPECT_EQ(failure->device, cuda(last()));
      EXPECT_EQ(failure->code, 700);
      EXPECT_EQ(failure->what, "CUDA error: an illegal memory access was encountered");
    }
    EXPECT_THROW(throw_if_failed(cuda(last())), c10::AcceleratorError);
    EXPECT_THROW(Event(cuda(last())).record(), c10::AcceleratorError);
    EXPECT_NO_THROW(throw_if_failed(at::kCPU));
    if (last() > 0) {
      EXPECT_NO_THROW(at::full({4}, 1.0, cuda(0)).add_(1).cpu());
    }
  });
}

}  // namespace
}  // namespace lockstep::inline v0::device
