// What remote calls with tensors of devices are ordered by: futures, coroutines, graphs of two
// devices, and the thread that sends.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/exception_text.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/stream.h"
#include "lockstep/rpc/autograd.h"
#include "lockstep/rpc/internal/core.h"
#include "lockstep/rpc/rpc_test_support.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"

namespace lockstep::inline v0::testing {
namespace {

using ::testing::HasSubstr;

at::Device gpu(int index) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

class DeviceMapsOrder : public WithoutRaces {
 protected:
  static rpc::Registry functions() {
    rpc::Registry registry;
    registry.add("twice", [](const at::Tensor& x) { return x * 2; });
    registry.add("elements", [](const at::Tensor& x) { return x.numel(); });
    registry.add("refuse", [](const at::Tensor& x) -> at::Tensor {
      if (x.defined()) throw InvalidArgument("not today");
      return x;
    });
    registry.add("current", [] { return int{device::current(at::kCUDA).index()}; });
    registry.add("split", [](const at::Tensor& x) { return std::pair(x * 2, (x * 3).to(gpu(1))); });
    return registry;
  }
  rpc::Agent agent(const std::string& name, const rpc::DeviceMap& to_b = {}) const {
    rpc::AgentOptions options;
    if (!to_b.empty()) options.set_device_map("b", to_b);
    return town_.agent(name, functions(), std::move(options));
  }

  rpc::Town town_;
};

rpc::Future<at::Tensor> six_times(rpc::Agent agent, at::Tensor x) {
  const at::Tensor twice = co_await agent.rpc_async<at::Tensor>("b", "twice", x);
  co_return twice * 3;
}
rpc::Future<void> add_twice(rpc::Agent agent, at::Tensor x, at::Tensor sum) {
  sum.add_(co_await agent.rpc_async<at::Tensor>("b", "twice", x));
}

// Whoever reads a future has its streams come after what others have computed for it, on whichever
// thread and device.
TEST_F(DeviceMapsOrder, AFuturesReaderComesAfterWhoeverMadeIt) {
  const auto a = agent("a", {{gpu(0), gpu(1)}}), b = agent("b");
  const c10::StreamGuard on_side(device::side_stream(gpu(0)));
  const c10::StreamGuard and_there(device::side_stream(gpu(2)));
  const at::Tensor x = at::ones({1000}, gpu(0));
  EXPECT_EQ((six_times(a, x).get() + 1)[999].item<float>(), 7.F) << "what a coroutine returns";
  const at::Tensor sum = at::ones({1000}, gpu(0));
  add_twice(a, x, sum).get();
  EXPECT_EQ((sum + 1)[999].item<float>(), 4.F) << "what it has changed";

  const at::Tensor changed = at::ones({1000}, gpu(0));
  const auto twice = a.rpc_async<at::Tensor>("b", "twice", x);
  twice.then([changed](const at::Tensor& y) { changed.add_(y); }).get();
  EXPECT_EQ((changed + 1)[999].item<float>(), 4.F) << "what then() has changed";
  const auto elsewhere =
      twice.then([](const at::Tensor&) { return std::vector{at::ones({1000}, gpu(2))}; });
  EXPECT_EQ((elsewhere.get()[0] + 1)[999].item<float>(), 2.F) << "on another device";
  const auto made = a.rpc_async<int64_t>("b", "elements", at::ones({3})).then([](int64_t count) {
    return at::ones({count}, gpu(2));
  });
  EXPECT_EQ((made.get() + 1)[2].item<float>(), 2.F) << "of what lay on no device";

  rpc::Promise<at::Tensor> promise;
  const auto kept = promise.future();
  std::thread([&] { promise.set_value(at::ones({1000}, gpu(0)) * 5); }).join();
  EXPECT_EQ((kept.get() + 1)[999].item<float>(), 6.F) << "of another thread";
}

TEST_F(DeviceMapsOrder, WhatAFailedCallHasSentMayChangeToo) {
  const auto a = agent("a", {{gpu(0), gpu(1)}}), b = agent("b");
  const at::Tensor x = at::ones({1000}, gpu(0));
  EXPECT_THROW(a.rpc_sync<at::Tensor>("b", "refuse", x), rpc::RemoteError);
  x.add_(1);
}

// The reader's stream uses the memory of the thread that made the result.
TEST_F(DeviceMapsOrder, AResultsMemoryIsKeptForItsReader) {
  const auto a = agent("a"), b = agent("b");
  {
    const auto made = a.rpc_async<int64_t>("b", "elements", at::ones({3})).then([](int64_t) {
      return at::ones({1000}, gpu(2));
    });
    const c10::StreamGuard on_side(device::side_stream(gpu(2)));
    made.get().add_(1);
  }
  at::ones({1000}, gpu(2)).add_(1);
}

TEST_F(DeviceMapsOrder, GradientsOfTwoDevices) {
  const auto a = agent("a", {{gpu(0), gpu(0)}, {gpu(1), gpu(1)}}), b = agent("b");
  const at::Tensor x = at::arange(1000, gpu(0)).cos().requires_grad_();
  rpc::AutogradContext context(a);
  at::Tensor loss;
  {
    const c10::StreamGuard on_side(device::side_stream(gpu(0)));
    const c10::StreamGuard and_there(device::side_stream(gpu(1)));
    device::order(c10::Stream(c10::Stream::DEFAULT, gpu(0)), device::current_stream(gpu(0)));
    const auto [here, there] = a.rpc_sync<std::pair<at::Tensor, at::Tensor>>("b", "split", x);
    loss = (here * 2).sum() + (there.tanh() * 5).sum().to(gpu(0));
    device::order(device::current_stream(gpu(0)), c10::Stream(c10::Stream::DEFAULT, gpu(0)));
  }
  context.backward({loss});
  const at::Tensor same = at::arange(1000).cos().requires_grad_();
  ((same * 2 * 2).sum() + ((same * 3).tanh() * 5).sum()).backward();
  EXPECT_TRUE(at::equal(context.gradient_of(x).cpu(), same.grad()));
}

// A late gradient that does not fit is refused as it arrives, not in a backward of somebody else's.
TEST_F(DeviceMapsOrder, ALateGradientFitsWhatItIsOf) {
  const auto a = agent("a", {{gpu(0), gpu(1)}}), b = agent("b", {});
  const at::Tensor x = at::ones({3}, gpu(0)).requires_grad_();
  rpc::AutogradContext context(a);
  a.rpc_sync<at::Tensor>("b", "twice", x);
  const auto id = rpc::internal::this_context().autograd->context->id;
  const auto late = [&](const at::Tensor& gradient) {
    return rpc::message_of([&] {
      rpc::internal::call_agent<rpc::internal::PassResult>(
          b.core()->calls(), "a", "rpc.late", rpc::internal::How::kSync, {}, id,
          rpc::internal::CallPath{0}, int64_t{0}, rpc::internal::CallPath{}, gradient)
          .get();
    });
  };
  EXPECT_THAT(late(at::Tensor()), HasSubstr("another shape"));
  EXPECT_THAT(late(at::ones({4})), HasSubstr("another shape"));
  EXPECT_THAT(late(at::ones({3})), HasSubstr("another device"));
}

// As where the agent was made, whichever thread serves.
TEST_F(DeviceMapsOrder, FunctionsHaveTheCurrentDeviceOfWhoMadeTheAgent) {
  device::set_current(gpu(2));
  const auto a = agent("a"), b = agent("b");
  EXPECT_EQ(a.rpc_sync<int>("b", "current"), 2);
  const auto after = a.rpc_async<int>("b", "current").then([](int) {
    return int{device::current(at::kCUDA).index()};
  });
  EXPECT_EQ(after.get(), 2);
}

TEST_F(DeviceMapsOrder, WhatCannotBeSentIsNotCopiedBefore) {
  const auto a = agent("a", {{gpu(0), gpu(1)}}), b = agent("b");
  const at::Tensor x = at::ones({3}, gpu(0));
  const int64_t before = cuda.counts().operations;
  std::vector<int64_t> sizes(64, 1);
  sizes.push_back(3);
  EXPECT_THAT(
      rpc::message_of([&] { a.rpc_sync<at::Tensor>("b", "twice", x.view(sizes)); }),
      HasSubstr("'twice' on 'b': rpc: a tensor of 65 dims cannot be sent; 64 are the most"));
  EXPECT_EQ(cuda.counts().operations, before);
}

TEST_F(DeviceMapsOrder, AGraphCarriesNoCall) {
  if (const auto why = device::why_no_graphs(gpu(0)); !why.empty()) GTEST_SKIP() << why;
  const auto a = agent("a", {{gpu(0), gpu(1)}}), b = agent("b");
  const c10::StreamGuard on_side(device::side_stream(gpu(0)));
  const at::Tensor x = at::ones({3}, gpu(0));
  device::Graph graph(gpu(0));
  std::string said;
  graph.capture([&] {
    x.add_(1);
    said = rpc::message_of([&] { a.rpc_sync<at::Tensor>("b", "twice", x); });
  });
  EXPECT_THAT(said, HasSubstr("'twice' on 'b': a tensor on cuda:0 cannot be sent while this thread "
                              "captures a graph"));
  EXPECT_TRUE(a.pending_calls().empty());
  graph.replay();
  EXPECT_EQ(a.rpc_sync<at::Tensor>("b", "twice", x)[0].item<float>(), 4.F);
}

class DeviceMapsSender : public DeviceMapsOrder {
 protected:
  using DeferredSender = rpc::internal::DeferredSender;

  // Copies that are there once end() is called; their bytes.
  class Late {
   public:
    explicit Late(int device) : stream_(device::side_stream(gpu(device))) {
      auto& timeline = fake::machine().timeline;
      stamp_ = timeline.launch(fake::slot_of(stream_), *fake::Host::current()).stamp;
      timeline.begin_late(stamp_, "a copy");
    }
    ~Late() { end(); }
    Late(const Late&) = delete;
    Late& operator=(const Late&) = delete;
    rpc::internal::Copies copies(size_t bytes = 0) const {
      rpc::internal::Copies copies;
      copies.events.emplace_back(stream_.device()).record(stream_);
      copies.bytes = bytes;
      return copies;
    }
    void end() {
      if (!std::exchange(over_, true)) fake::machine().timeline.end_late(stamp_);
    }

   private:
    c10::Stream stream_;
    fake::Stamp stamp_;
    bool over_ = false;
  };
  // "sent", "not there", or what went wrong.
  static std::future<std::string> post(DeferredSender& sender, rpc::internal::Copies copies,
                                       DeferredSender::Line line) {
    const auto said = std::make_shared<std::promise<std::string>>();
    EXPECT_TRUE(sender.post(
        std::move(copies), line, Deadline::after(std::chrono::minutes(2)),
        [said](const rpc::internal::Tensors* tensors, const std::exception_ptr& error) {
          said->set_value(error ? exception_text(error) : tensors ? "sent" : "not there");
        }));
    return said->get_future();
  }
  static bool is_there(const std::future<std::string>& one) {
    return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
};

// What has no order, as answers have none, does not wait for the copies of others; what has one
// does.
TEST_F(DeviceMapsSender, OnlyWhatHasAnOrderWaitsForOthers) {
  DeferredSender sender;
  Late late(0);
  const int link = 0, other = 0;
  auto first = post(sender, late.copies(1000), {&link, 1});
  auto unordered = post(sender, late.copies(), {&link});
  auto behind = post(sender, {}, {&link, 1});
  EXPECT_EQ(post(sender, {}, {&link}).get(), "sent");
  EXPECT_EQ(post(sender, {}, {&link, 2}).get(), "sent");
  EXPECT_EQ(post(sender, {}, {&other, 1}).get(), "sent");
  EXPECT_FALSE(is_there(first) || is_there(unordered) || is_there(behind));
  EXPECT_TRUE(sender.has({&link, 1}));
  EXPECT_FALSE(sender.has({&link, 2}));
  // One link's bytes leave room on another.
  EXPECT_TRUE(sender.wait_for_room(&other, 1000, Deadline::after(std::chrono::seconds(0))));
  EXPECT_FALSE(sender.wait_for_room(&link, 1000, Deadline::after(std::chrono::seconds(0))));
  late.end();
  EXPECT_EQ(first.get(), "sent");
  EXPECT_EQ(unordered.get(), "sent");
  EXPECT_EQ(behind.get(), "sent");
  EXPECT_TRUE(sender.wait_for_room(&link, 1000, Deadline::after(std::chrono::minutes(1))));
}

TEST_F(DeviceMapsSender, WhatWaitsWhenItIsStoppedIsToldSo) {
  DeferredSender sender;
  const Late late(0);
  const int link = 0;
  auto one = post(sender, late.copies(), {&link});
  sender.stop(Deadline::after(std::chrono::minutes(1)));
  EXPECT_EQ(one.get(), "this agent was shut down");
  EXPECT_FALSE(sender.post({}, {&link}, Deadline::after(std::chrono::minutes(1)), nullptr));
}

// Any error of a device shows where events are asked for: here, one of a capture.
TEST_F(DeviceMapsSender, AnErrorOfADeviceEndsItsMessageAndNoOther) {
  if (const auto why = device::why_no_graphs(gpu(0)); !why.empty()) GTEST_SKIP() << why;
  DeferredSender sender;
  const int link = 0;
  const c10::StreamGuard on_side(device::side_stream(gpu(0)));
  const at::Tensor x = at::ones({3}, gpu(0));
  device::Graph graph(gpu(0));
  rpc::internal::Copies copies;
  graph.capture([&] {
    x.add_(1);
    copies.events.emplace_back(gpu(0)).record();
  });
  EXPECT_THAT(post(sender, std::move(copies), {&link, 1}).get(), HasSubstr("CUDA error"));
  EXPECT_EQ(post(sender, {}, {&link, 1}).get(), "sent");
}

}  // namespace
}  // namespace lockstep::inline v0::testing
