// Completion ordered on a device's stream, with a fake device: when a wait releases the host, which
// work it orders, and how operations end that the host no longer waits for.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/comm/engines/side_channel/checked_backend.h"
#include "lockstep/comm/engines/side_channel/shared_channel.h"
#include "lockstep/comm/fake_device_test.h"
#include "lockstep/comm/internal/device_watch.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::inline v0::device_order_test {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// A rank on a device: its communicator, its thread's current stream, and a gate that holds back the
// communicator's work on the device until it is set.
struct Rank {
  int rank = 0;
  std::optional<Communicator> comm = std::nullopt;
  FakeStream* stream = nullptr;
  std::shared_ptr<FakeEvent> gate = nullptr;
  std::shared_ptr<std::atomic<int>> told = nullptr;  // the number of on_broken calls

  // The value that the stream finds in the tensor when it gets there; read the result after
  // synchronize().
  std::shared_ptr<double> read_on_stream(const at::Tensor& tensor) const {
    auto value = std::make_shared<double>(-1);
    stream->give([=] { *value = tensor.const_data_ptr<float>()[0]; });
    return value;
  }
};

// Two ranks as threads, each on a device, behind the check of backend nccl.
void run_on_devices(const std::function<void(Rank&)>& fn, std::chrono::nanoseconds timeout = 30s) {
  constexpr int kSize = 2;
  std::vector<std::unique_ptr<Backend>> engines = make_local_backends(kSize);
  HashStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < kSize; ++r) {
    threads.emplace_back([&, r, engine = std::move(engines[r])]() mutable {
      Rank rank{.rank = r,
                .gate = std::make_shared<FakeEvent>(),
                .told = std::make_shared<std::atomic<int>>(0)};
      FakeStream stream;
      rank.stream = FakeStream::current() = &stream;
      auto device = std::make_unique<FakeDeviceBackend>(std::move(engine), rank.gate);
      auto channel = side_channel::make_shared_channel(store, r, kSize, Deadline::after(30s));
      rank.comm.emplace(make_checked_backend(std::move(device), std::move(channel), r),
                        Topology{r, kSize, r, kSize, 0},
                        CommunicatorOptions{.timeout = timeout,
                                            .on_broken = [told = rank.told](const std::string&) {
                                              told->fetch_add(1);
                                            }});
      try {
        fn(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
        if (rank.comm) rank.comm->abort(error.what());
      }
      rank.gate->set();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Waits until it holds, for at most ten seconds.
bool holds_soon(const std::function<bool()>& condition) {
  for (const Deadline deadline = Deadline::after(10s); !deadline.expired();) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

TEST(DeviceOrder, AWaitLetsTheHostGoAndOrdersTheStream) {
  run_on_devices([](Rank& rank) {
    const at::Tensor plain = at::full({5}, 1.0 + rank.rank), later = at::full({5}, 10.0);
    rank.comm->all_reduce(plain);
    Work work = rank.comm->iall_reduce(later);
    work.wait();
    // The devices are held, but the host has returned.
    EXPECT_EQ(plain.const_data_ptr<float>()[0], 1.0f + static_cast<float>(rank.rank));
    const auto found = rank.read_on_stream(plain), found_later = rank.read_on_stream(later);
    rank.gate->set();
    rank.stream->synchronize();
    EXPECT_EQ(*found, 3);
    EXPECT_EQ(*found_later, 20);
  });
}

TEST(DeviceOrder, AnOperationComesAfterWhatTheStreamHadBeenGiven) {
  run_on_devices([](Rank& rank) {
    rank.gate->set();
    const at::Tensor tensor = at::zeros({4});
    rank.stream->give([=] {
      std::this_thread::sleep_for(30ms);
      tensor.fill_(7);
    });
    rank.comm->all_reduce(tensor);
    const auto found = rank.read_on_stream(tensor);
    rank.stream->synchronize();
    EXPECT_EQ(*found, 14);
  });
}

TEST(DeviceOrder, WhatIsStartedByALaterCallComesAfterTheStreamOfItsOwn) {
  run_on_devices([](Rank& rank) {
    rank.gate->set();
    const at::Tensor tensor = at::zeros({4});
    rank.stream->give([=] {
      std::this_thread::sleep_for(30ms);
      tensor.fill_(rank.rank + 1.0);
    });
    // Rank 1 starts later, so that rank 0's engine gets the call inside a wait, whatever the
    // stream.
    if (rank.rank == 1) std::this_thread::sleep_for(20ms);
    Work work = rank.comm->iall_reduce(tensor);
    FakeStream other;
    FakeStream::current() = &other;
    rank.comm->barrier();
    FakeStream::current() = rank.stream;
    work.wait();
    EXPECT_EQ(tensor.const_data_ptr<float>()[0], 3.0f);  // the barrier comes after it
  });
}

TEST(DeviceOrder, TestAndBarrierAreTheHosts) {
  run_on_devices([](Rank& rank) {
    const at::Tensor tensor = at::full({3}, 1.0);
    Work work = rank.comm->iall_reduce(tensor);
    for (int look = 0; look < 20; ++look) {
      EXPECT_FALSE(work.test());
      std::this_thread::sleep_for(1ms);
    }
    rank.gate->set();
    EXPECT_TRUE(holds_soon([&] { return work.test(); }));
    EXPECT_EQ(tensor.const_data_ptr<float>()[0], 2.0f);
    const at::Tensor next = at::full({3}, 1.0);
    rank.comm->all_reduce(next);
    rank.comm->barrier();  // in the device's order
    EXPECT_EQ(next.const_data_ptr<float>()[0], 2.0f);
  });
}

TEST(DeviceOrder, MemoryIsKeptUntilTheDeviceIsThroughAndNoLonger) {
  run_on_devices([](Rank& rank) {
    std::atomic<bool> freed{false};
    std::vector<float> data(8, 1.0f);
    at::Tensor tensor = at::from_blob(data.data(), {8}, [&](void*) { freed = true; });
    rank.comm->all_reduce(tensor);
    tensor = at::Tensor();
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(freed);
    rank.gate->set();
    EXPECT_TRUE(holds_soon([&] { return freed.load(); }));
    EXPECT_EQ(data[0], 2.0f);
  });
}

TEST(DeviceOrder, ADeviceThatIsLateBreaksTheCommunicatorWithoutACall) {
  run_on_devices(
      [](Rank& rank) {
        const at::Tensor tensor = at::full({3}, 1.0);
        rank.comm->all_reduce(tensor);  // submitted to devices that do not start
        EXPECT_TRUE(holds_soon([&] { return rank.told->load() > 0; }));
        // Waits for the device are released: nothing is left to hold the stream.
        rank.stream->synchronize();
        try {
          rank.comm->barrier();
          ADD_FAILURE() << "a broken communicator took a call";
        } catch (const Timeout& error) {
          EXPECT_THAT(error.what(), HasSubstr("#1 all_reduce sum float32 x 3"));
        }
        EXPECT_EQ(rank.told->load(), 1);
      },
      1s);
}

TEST(DeviceOrder, ARankThatLeavesIsNamedWhileTheHostIsElsewhere) {
  std::atomic<int> given{0};
  run_on_devices([&](Rank& rank) {
    const at::Tensor tensor = at::full({3}, 1.0);
    rank.comm->all_reduce(tensor);
    ++given;
    if (rank.rank == 1) {
      EXPECT_TRUE(holds_soon([&] { return given == 2; }));
      rank.comm->abort("it has had enough");
      return;
    }
    // Rank 0 waits only for its device.
    rank.stream->synchronize();
    EXPECT_TRUE(holds_soon([&] { return rank.told->load() > 0; }));
    try {
      rank.comm->barrier();
      ADD_FAILURE() << "a broken communicator took a call";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("it has had enough"));
    }
  });
}

TEST(DeviceOrder, AnAbortedCommunicatorGivesMemoryBack) {
  std::atomic<int> given{0};
  run_on_devices([&](Rank& rank) {
    std::atomic<bool> freed{false};
    std::vector<float> data(8, 1.0f);
    at::Tensor tensor = at::from_blob(data.data(), {8}, [&](void*) { freed = true; });
    rank.comm->all_reduce(tensor);
    tensor = at::Tensor();
    ++given;
    EXPECT_TRUE(holds_soon([&] { return given == 2; }));
    std::thread([comm = *rank.comm]() mutable { comm.abort("stopped by a test"); }).join();
    EXPECT_TRUE(holds_soon([&] { return freed.load(); }));
    EXPECT_THROW(rank.comm->barrier(), PeerLost);
  });
}

TEST(DeviceOrder, ACommunicatorThatGoesLetsTheDeviceFinish) {
  run_on_devices([](Rank& rank) {
    const at::Tensor tensor = at::full({3}, 1.0);
    rank.comm->all_reduce(tensor);
    std::thread opener([gate = rank.gate] {
      std::this_thread::sleep_for(50ms);
      gate->set();
    });
    rank.comm.reset();
    EXPECT_EQ(tensor.const_data_ptr<float>()[0], 2.0f);
    opener.join();
  });
}

TEST(DeviceOrder, MemoryMayHoldTheCommunicator) {
  run_on_devices([](Rank& rank) {
    auto gone = std::make_shared<std::atomic<bool>>(false);
    auto data = std::make_shared<std::vector<float>>(8, 1.0f);
    at::Tensor tensor = at::from_blob(
        data->data(), {8},
        [data, gone, comm = std::make_shared<Communicator>(*rank.comm)](void*) mutable {
          comm.reset();  // the last handle, on the watch's own thread
          gone->store(true);
        });
    rank.comm->all_reduce(tensor);
    tensor = at::Tensor();
    rank.comm.reset();
    EXPECT_FALSE(gone->load());
    rank.gate->set();
    EXPECT_TRUE(holds_soon([&] { return gone->load(); }));
    EXPECT_EQ((*data)[0], 2.0f);
  });
}

struct NeverOver final : Tail {
  bool over() noexcept override { return false; }
};

struct OverWhenTold final : Tail {
  explicit OverWhenTold(bool& told) : told_(told) {}
  bool over() noexcept override { return told_; }
  bool& told_;
};

TEST(DeviceWatch, WhatDoesNotEndIsKeptUntilItDoes) {
  bool freed = false, over = false;
  int looks = 0;
  std::vector<float> data(8);
  {
    DeviceWatch watch([&](DeviceWatch::Operation&) -> bool {
      ++looks;
      throw Timeout("too late");
    });
    std::vector<at::Tensor> keep = {at::from_blob(data.data(), {8}, [&](void*) { freed = true; })};
    watch.add({.keep = std::move(keep),
               .tail = std::make_shared<OverWhenTold>(over),
               .request = nullptr,
               .deadline = Deadline::after(1s)});
    watch.drain();
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(looks, 1);
  EXPECT_FALSE(freed);
  over = true;
  {
    const DeviceWatch another([](DeviceWatch::Operation&) { return true; });
  }
  EXPECT_TRUE(freed);
}

TEST(DeviceOrder, AMessageThatNobodySendsLetsTheDeviceGo) {
  std::atomic<bool> through{false};
  run_on_devices(
      [&](Rank& rank) {
        rank.gate->set();
        const at::Tensor tensor = at::full({3}, 1.0);
        if (rank.rank == 1) {
          EXPECT_TRUE(holds_soon([&] { return through.load(); }));
          return;
        }
        rank.comm->recv(tensor, 1);
        rank.stream->synchronize();
        EXPECT_TRUE(holds_soon([&] { return rank.told->load() > 0; }));
        EXPECT_THROW(rank.comm->send(tensor, 1), Timeout);
        through = true;
      },
      1s);
}

TEST(DeviceOrder, MessagesAreOrderedToo) {
  run_on_devices([](Rank& rank) {
    rank.gate->set();
    const at::Tensor tensor = at::full({3}, 5.0 + rank.rank);
    if (rank.rank == 0) {
      rank.stream->give([=] {
        std::this_thread::sleep_for(20ms);
        tensor.fill_(9);
      });
      rank.comm->send(tensor, 1);
    } else {
      rank.comm->recv(tensor, 0);
    }
    const auto found = rank.read_on_stream(tensor);
    rank.stream->synchronize();
    EXPECT_EQ(*found, 9);
  });
}

TEST(DeviceOrder, AWaitsOwnDeadlineIsTheDevices) {
  run_on_devices([](Rank& rank) {
    const at::Tensor tensor = at::full({3}, 1.0);
    Work work = rank.comm->iall_reduce(tensor);
    const Deadline begin = Deadline::after(10s);
    work.wait(Deadline::after(2s));
    EXPECT_LT(begin.elapsed_seconds(), 2);  // the devices receive it at once
    EXPECT_TRUE(holds_soon([&] { return rank.told->load() > 0; }));
    EXPECT_THROW(rank.comm->barrier(), Timeout);
  });
}

}  // namespace
}  // namespace lockstep::inline v0::device_order_test
