// Mistakes in the use of streams and memory are found, and what is right raises no alarm.
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::inline v0::testing {
namespace {

class Races : public WithoutRaces {
 protected:
  static c10::Stream current() { return guard().getStream(device()); }
  static c10::Stream fresh() { return guard().getStreamFromGlobalPool(device()); }
  static c10::impl::VirtualGuardImpl guard() {
    return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA);
  }
  static c10::Device device() { return {c10::DeviceType::CUDA, 0}; }
  // What comes next on `later` comes after what `earlier` has been given.
  static void order(c10::Stream earlier, c10::Stream later) {
    c10::Event event(c10::DeviceType::CUDA);
    event.record(earlier);
    event.block(later);
  }
  // The one race that there is.
  Race only_race() {
    const std::vector<Race> races = cuda.take_races();
    EXPECT_EQ(races.size(), 1u);
    for (size_t i = 1; i < races.size(); ++i) ADD_FAILURE() << races[i].text();
    return races.empty() ? Race{} : races[0];
  }
};

TEST_F(Races, AMissingWaitIsFound) {
  const at::Tensor a = torch::ones({4}, at::kCUDA);
  const c10::Stream side = fresh();
  {
    const c10::StreamGuard on(side);
    EXPECT_EQ((a * 2).size(0), 4);
  }
  const Race race = only_race();
  EXPECT_EQ(race.kind, RaceKind::kReadAfterWrite);
  EXPECT_EQ(race.later.find("aten::mul"), 0u) << race.later;
  EXPECT_NE(race.later.find("cuda:0, stream " + std::to_string(side.id())), std::string::npos);
  EXPECT_EQ(race.earlier.find("aten::fill_"), 0u) << race.earlier;
  EXPECT_NE(race.earlier.find("cuda:0, stream 0"), std::string::npos) << race.earlier;
  EXPECT_NE(race.earlier.find("called from"), std::string::npos) << race.earlier;
}

TEST_F(Races, AWaitIsEnough) {
  const at::Tensor a = torch::ones({4}, at::kCUDA);
  const c10::Stream main = current();
  const c10::Stream side = fresh();
  order(main, side);
  std::optional<at::Tensor> b;
  {
    const c10::StreamGuard on(side);
    b = a * 2;
  }
  order(side, main);
  a.add_(*b);
  EXPECT_EQ(a.sum().item<float>(), 12);
}

TEST_F(Races, AWriteWaitsForReaders) {
  const at::Tensor a = torch::ones({4}, at::kCUDA);
  const c10::Stream side = fresh();
  order(current(), side);
  {
    const c10::StreamGuard on(side);
    a.clone();
  }
  a.zero_();
  EXPECT_EQ(only_race().kind, RaceKind::kWriteAfterRead);
}

TEST_F(Races, TwoWriters) {
  const at::Tensor a = torch::empty({4}, at::kCUDA);
  a.zero_();
  const c10::StreamGuard on(fresh());
  a.fill_(1);
  EXPECT_EQ(only_race().kind, RaceKind::kWriteAfterWrite);
}

TEST_F(Races, PartsOfATensorAreApart) {
  const at::Tensor a = torch::zeros({4, 8}, at::kCUDA);
  const c10::Stream side = fresh();
  order(current(), side);
  a.slice(1, 0, 4).fill_(1);
  const c10::StreamGuard on(side);
  a.slice(1, 4, 8).fill_(2);
}

TEST_F(Races, TheHostsWaitOrdersWhatItStartsNext) {
  const c10::Stream side = fresh();
  for (const bool by_event : {false, true}) {
    const at::Tensor a = torch::ones({4}, at::kCUDA);
    c10::Event event(c10::DeviceType::CUDA);
    event.record(current());
    if (by_event)
      event.synchronize();
    else
      guard().synchronizeDevice(0);
    const c10::StreamGuard on(side);
    a.mul_(2);
    guard().synchronizeStream(side);
  }
}

TEST_F(Races, AQueryTellsItsOwnThread) {
  const at::Tensor a = torch::ones({4}, at::kCUDA);
  c10::Event event(c10::DeviceType::CUDA);
  event.record(current());
  std::thread([&] { EXPECT_TRUE(event.query()); }).join();
  {
    const c10::StreamGuard on(fresh());
    a.clone();
  }
  EXPECT_EQ(only_race().kind, RaceKind::kReadAfterWrite) << "a watching thread hides nothing";
  const at::Tensor b = torch::ones({4}, at::kCUDA);
  event.record(current());
  EXPECT_TRUE(event.query());
  const c10::StreamGuard on(fresh());
  b.clone();
}

TEST_F(Races, MemoryThatIsFreedInUseIsFound) {
  const c10::Stream main = current();
  const c10::Stream side = fresh();
  for (const bool recorded : {false, true}) {
    at::Tensor a = torch::ones({4}, at::kCUDA);
    order(main, side);
    {
      const c10::StreamGuard on(side);
      a.clone();
    }
    if (recorded) a.record_stream(side);
    a.reset();
    const at::Tensor next = torch::ones({4}, at::kCUDA);
    if (recorded) continue;
    const Race race = only_race();
    EXPECT_EQ(race.kind, RaceKind::kFreedInUse);
    EXPECT_EQ(race.earlier.find("aten::copy_"), 0u) << race.earlier;
  }
  // What the recorded stream has waited for is over by then, too.
  {
    const c10::Stream third = fresh();
    at::Tensor a = torch::ones({4}, at::kCUDA);
    order(main, third);
    {
      const c10::StreamGuard on(third);
      a.clone();
    }
    order(third, side);
    a.record_stream(side);
    a.reset();
    const at::Tensor next = torch::ones({4}, at::kCUDA);
  }
  // Kept until its stream has waited, it needs no record.
  at::Tensor a = torch::ones({4}, at::kCUDA);
  order(main, side);
  {
    const c10::StreamGuard on(side);
    a.clone();
  }
  order(side, main);
  a.reset();
  torch::ones({4}, at::kCUDA);
}

// Kernels of several threads have the same memory open at once.
TEST_F(Races, ThreadsReadTheSameTensor) {
  const at::Tensor shared = torch::ones({1000}, at::kCUDA);
  guard().synchronizeDevice(0);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const c10::StreamGuard on(fresh());
      for (int i = 0; i < 50; ++i) right += (shared + t).sum().item<float>() == 1000 * (1 + t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

TEST_F(Races, CopiesBetweenDevicesWaitForBoth) {
  const at::Tensor a = torch::ones({4}, at::Device(at::kCUDA, 0));
  const at::Tensor b = a.to(at::Device(at::kCUDA, 1));
  b.mul_(2);
  a.copy_(b);
  EXPECT_EQ(a.sum().item<float>(), 8);
}

TEST_F(Races, BackwardRunsOnTheForwardsStream) {
  const at::Tensor weight = torch::ones({4, 4}, at::kCUDA).requires_grad_();
  const c10::Stream side = fresh();
  order(current(), side);
  at::Tensor loss;
  {
    const c10::StreamGuard on(side);
    loss = weight.mm(weight).sum();
  }
  order(side, current());
  loss.backward();
  weight.grad().mul_(2);  // autograd has ordered the caller's stream after
  EXPECT_EQ(weight.grad().sum().item<float>(), 256);
}

TEST_F(Races, BackwardCountsForItsCaller) {
  const at::Tensor weight = torch::ones({4, 4}, at::kCUDA).requires_grad_();
  const at::Tensor loss = weight.mm(weight).sum();
  Counting counted;
  loss.backward();
  EXPECT_GE(counted.operations(), 3);
  EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
}

using HostAccessDeathTest = Races;

TEST_F(HostAccessDeathTest, TheHostDoesNotReadDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor a = torch::ones({4}, at::kCUDA);
  EXPECT_EXIT(
      { [[maybe_unused]] volatile float first = *a.const_data_ptr<float>(); },
      ::testing::KilledBySignal(SIGSEGV), "host code read device memory of cuda:0, of aten::empty");
  EXPECT_EXIT(*a.mutable_data_ptr<float>() = 1, ::testing::KilledBySignal(SIGSEGV),
              "host code wrote device memory of cuda:0");
}

// In a process where nothing is installed yet.
TEST(NotedHostAccessDeathTest, TheHostGoesOnWhereItsAccessIsNoted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto touch = [] {
    FakeCuda& cuda = FakeCuda::install({.devices = 1, .host_access = HostAccess::kNote});
    const at::Tensor a = torch::ones({4}, at::kCUDA);
    const float first = *a.const_data_ptr<float>();
    a.add_(1);
    const std::vector<Race> races = cuda.take_races();
    const bool noted = races.size() == 1 && races[0].kind == RaceKind::kHostAccess && first == 1;
    std::_Exit(noted ? 0 : 1);
  };
  EXPECT_EXIT(touch(), ::testing::ExitedWithCode(0), "");
}

TEST_F(HostAccessDeathTest, TheHostDoesNotDisturbCopiesOfPinnedMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const at::Tensor a = torch::ones({4}, at::kCUDA);
  const at::Tensor pinned = torch::empty({4}, at::TensorOptions().pinned_memory(true));
  pinned.copy_(a, /*non_blocking=*/true);
  EXPECT_EXIT(
      { [[maybe_unused]] volatile float first = *pinned.const_data_ptr<float>(); },
      ::testing::KilledBySignal(SIGSEGV),
      "host code read pinned memory that a copy may not be through with, of aten::copy_");
  guard().synchronizeDevice(0);
  EXPECT_EQ(pinned.sum().item<float>(), 4);

  a.copy_(pinned, /*non_blocking=*/true);
  EXPECT_EQ(pinned.sum().item<float>(), 4) << "both may read";
  EXPECT_EXIT(pinned.fill_(2), ::testing::KilledBySignal(SIGSEGV), "host code wrote pinned memory");
  guard().synchronizeDevice(0);
  pinned.fill_(2);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
