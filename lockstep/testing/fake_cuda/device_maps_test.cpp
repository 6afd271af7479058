// Remote calls with tensors of devices: where they go, in which order, and that no host waits for a device.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/device/stream.h"
#include "lockstep/rpc/autograd.h"
#include "lockstep/rpc/optimizer.h"
#include "lockstep/rpc/rpc_test_support.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::inline v0::testing {
namespace {

using ::testing::HasSubstr;

at::Device cuda_device(int index) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}
rpc::DeviceMap from_to(int here, int there) {
  return {{cuda_device(here), cuda_device(there)}};
}

// A part of a model; all parts of one shape are the same.
struct Part {
  Part(int64_t in, int64_t out, at::Device device) : layer(in, out) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : layer->parameters())
      parameter.copy_(at::arange(parameter.numel()).view_as(parameter).sin());
    layer->to(device);
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x).tanh(); }
  torch::nn::Linear layer;
};

class DeviceMaps : public WithoutRaces {
 protected:
  static rpc::Registry functions() {
    rpc::Registry registry;
    registry.add("index", [](const at::Tensor& x) { return int{x.device().index()}; });
    registry.add("twice", [](const at::Tensor& x) { return x * 2; });
    registry.add("quick_twice", [](const at::Tensor& x) { return x * 2; }, {.quick = true});
    registry.add("both", [](const std::vector<at::Tensor>& all) { return all[0].cpu() + all[1]; });
    registry.add("ones", [](int64_t device) { return at::ones({3}, cuda_device(device)); });
    registry.add("later", [](const at::Tensor& x) {
      return rpc::Agent::current()
          .rpc_async<at::Tensor>(rpc::Agent::current().name(), "twice", x)
          .then([](const at::Tensor& twice) { return twice + 1; });
    });
    const auto seen = std::make_shared<std::vector<int64_t>>();
    registry.add("note", [seen](const at::Tensor& x, int64_t which) {
      seen->push_back(which);
      return x.numel();
    });
    registry.add("notes", [seen] { return *seen; });
    registry.add("part", [](int64_t in, int64_t out, int64_t device) {
      return std::make_shared<Part>(in, out, cuda_device(device));
    });
    registry.add("forward", &Part::forward);
    registry.add("forward_here", [](Part& part, at::Tensor& x) { return part.forward(x); });
    registry.add("forward_after", [](Part& part, rpc::RRef<Part> first, const at::Tensor& x) {
      return part.forward(first.rpc_sync<at::Tensor>("forward", x));
    });
    registry.add("parameters", [](Part& part) {
      std::vector<rpc::RRef<at::Tensor>> all;
      for (const auto& parameter : part.layer->parameters())
        all.push_back(rpc::Agent::current().own(std::make_shared<at::Tensor>(parameter)));
      return all;
    });
    registry.add("weight", [](Part& part) { return part.layer->weight.detach().clone(); });
    rpc::add_optimizers(registry);
    return registry;
  }
  rpc::Agent agent(const std::string& name,
                   const std::vector<std::pair<std::string, rpc::DeviceMap>>& maps) const {
    rpc::AgentOptions options;
    for (const auto& [peer, map] : maps) options.set_device_map(peer, map);
    return town_.agent(name, functions(), std::move(options));
  }

  rpc::Town town_;
};

TEST_F(DeviceMaps, TensorsGoByTheMapAndComeBackByIt) {
  const auto a = agent("a", {{"b", from_to(0, 1)}}), b = agent("b", {});
  for (const int64_t size : {0, 3, 3000, 200'000}) {
    const at::Tensor x = at::arange(size, cuda_device(0));
    int64_t before = cuda.counts().stops();
    EXPECT_EQ(a.rpc_sync<int>("b", "index", x), 1);
    for (const char* function : {"twice", "quick_twice", "later"}) {
      const auto y = a.rpc_sync<at::Tensor>("b", function, x);
      EXPECT_EQ(y.device(), cuda_device(0));
      const at::Tensor wrong = y - x * 2 - (function == std::string("later") ? 1 : 0);
      EXPECT_EQ(cuda.counts().stops(), before) << "no host waits for a device";
      EXPECT_EQ(wrong.abs().sum().item<int64_t>(), 0) << function << ' ' << size;
      before = cuda.counts().stops();
    }
  }
  // Beside tensors of the CPU, of which it is said nothing.
  const auto mixed = a.rpc_sync<at::Tensor>(
      "b", "both", std::vector<at::Tensor>{at::ones({2}, cuda_device(0)), at::ones({2})});
  EXPECT_TRUE(at::equal(mixed, at::full({2}, 2.F)));
  EXPECT_EQ(a.rpc_sync<at::Tensor>("b", "ones", 1).device(), cuda_device(0));
  // Not contiguous, and of a call to oneself.
  const at::Tensor across = at::arange(6, cuda_device(2)).view({2, 3}).t();
  const auto own = a.rpc_sync<at::Tensor>("a", "twice", across);
  EXPECT_EQ(own.device(), cuda_device(2));
  EXPECT_TRUE(at::equal(own.cpu(), (across * 2).cpu()));
}

TEST_F(DeviceMaps, InTheOrderOfTheCallersStream) {
  const auto a = agent("a", {{"b", from_to(0, 1)}}), b = agent("b", {});
  const c10::StreamGuard on_side(device::side_stream(cuda_device(0)));
  at::Tensor x = at::ones({1000}, cuda_device(0));
  const int64_t before = cuda.counts().stops();
  for (int i = 0; i < 4; ++i) {
    x.mul_(2);
    const auto future = a.rpc_async<at::Tensor>("b", "twice", x);
    const at::Tensor y = future.get();
    x.sub_(y, 0.25);  // the call has returned: its tensor may be changed
  }
  EXPECT_EQ(cuda.counts().stops(), before);
  EXPECT_EQ(x[0].item<float>(), 1.F);
  // One's own objects are served on the default streams, whichever thread does it.
  const auto own = a.remote<at::Tensor>("a", "ones", 0);
  EXPECT_EQ((own.to_here() + x.slice(0, 0, 3)).sum().item<float>(), 6.F);
  // What follows a future runs elsewhere, and its result comes here in order, too.
  const auto more =
      a.rpc_async<at::Tensor>("b", "twice", x).then([](const at::Tensor& y) { return y * 3; });
  EXPECT_EQ((more.get() + 1)[999].item<float>(), 7.F);
}

// The contents must not change until the call has returned: who does it is found out.
TEST_F(DeviceMaps, ATensorThatIsChangedTooEarlyIsARace) {
  const auto a = agent("a", {{"b", from_to(0, 1)}}), b = agent("b", {});
  const at::Tensor x = at::ones({1000}, cuda_device(0));
  const auto future = a.rpc_async<at::Tensor>("b", "twice", x);
  x.add_(1);
  future.wait();
  const auto races = cuda.take_races();
  ASSERT_EQ(races.size(), 1U);
  EXPECT_EQ(races[0].kind, RaceKind::kWriteAfterRead) << races[0].text();
}

TEST_F(DeviceMaps, WhatNoDeviceStandsForIsRefusedAndNothingIsSent) {
  const auto a = agent("a", {{"b", from_to(0, 1)}, {"c", from_to(0, 7)}}), b = agent("b", {}),
             c = agent("c", {});
  const std::string said =
      rpc::message_of([&] { a.rpc_sync<at::Tensor>("b", "twice", at::ones({3}, cuda_device(2))); });
  EXPECT_THAT(said, HasSubstr("'twice' on 'b': a tensor on cuda:2 cannot be sent, since no device "
                              "of 'b' stands for it: AgentOptions::set_device_map(\"b\", {{cuda:2, "
                              "cuda:N}}), or send tensor.cpu()"));
  EXPECT_EQ(said.find('\n'), std::string::npos);
  EXPECT_THROW(b.rpc_async<at::Tensor>("a", "twice", at::ones({3}, cuda_device(0))),
               InvalidArgument);
  EXPECT_TRUE(a.pending_calls().empty());
  // The way back.
  EXPECT_THAT(
      rpc::message_of([&] { a.rpc_sync<at::Tensor>("b", "ones", 2); }),
      HasSubstr("a tensor on cuda:2 cannot be returned, since no device of 'a' stands for it"));
  // A device that the other end lacks.
  EXPECT_THAT(
      rpc::message_of([&] { a.rpc_sync<int>("c", "index", at::ones({3}, cuda_device(0))); }),
      HasSubstr("sent to cuda:7, but this process sees 3 devices"));
  EXPECT_EQ(a.rpc_sync<int>("b", "index", at::ones({3}, cuda_device(0))), 1) << "it goes on";
  // Maps that make no sense.
  EXPECT_THAT(rpc::message_of([&] { agent("d", {{"a", from_to(5, 0)}}); }),
              HasSubstr("the device map for 'a' sends from cuda:5, but this process sees 3"));
  EXPECT_THAT(rpc::message_of([&] { agent("d", {{"a", {{at::kCPU, cuda_device(0)}}}}); }),
              HasSubstr("has cpu, which is no device with a number"));
  EXPECT_THAT(
      rpc::message_of([&] {
        agent("d", {{"a", {{cuda_device(0), cuda_device(0)}, {cuda_device(1), cuda_device(0)}}}});
      }),
      HasSubstr("has cuda:0, twice"));
}

TEST_F(DeviceMaps, CallsOfOneOrderStayInOrder) {
  const auto a = agent("a", {{"b", from_to(0, 1)}}), b = agent("b", {});
  const auto to = a.to("b", {.order = 1});
  std::vector<rpc::Future<int64_t>> calls;
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < 40; ++i) {
    wanted.push_back(i);
    calls.push_back(to.rpc_async<int64_t>(
        "note", i % 3 == 0 ? at::ones({1 << 16}, cuda_device(0)) : at::ones({2}), i));
  }
  rpc::wait_all(calls);
  EXPECT_EQ(a.rpc_sync<std::vector<int64_t>>("b", "notes"), wanted);
}

TEST_F(DeviceMaps, ReferencesToWhatLiesOnDevices) {
  rpc::AgentOptions options;
  options.set_device_map("b", {{at::Device("cuda:0"), at::Device("cuda:1")}});
  const auto a = town_.agent("a", functions(), std::move(options)), b = agent("b", {});
  const auto there = a.remote<at::Tensor>("b", "ones", 1);
  EXPECT_EQ(there.to_here().device(), cuda_device(0));
  const auto part = a.remote<Part>("b", "part", 4, 2, 1);
  const at::Tensor x = at::ones({3, 4}, at::Device("cuda:0"));
  const auto y = part.rpc_sync<at::Tensor>("forward", x);  // there on cuda:1, here on cuda:0
  EXPECT_EQ(y.device(), cuda_device(0));
  Part same(4, 2, at::kCPU);
  EXPECT_TRUE(at::equal(y.cpu(), same.forward(at::ones({3, 4}))));
}

// b's part and then c's, each on its device; and, nested, b calls c. One process's numbers.
TEST_F(DeviceMaps, GradientsTravelBackByTheSameMaps) {
  const at::Tensor x = at::arange(20).view({4, 5}).cos();
  Part first(5, 7, at::kCPU), last(7, 3, at::kCPU);
  torch::optim::SGD sgd(
      [&] {
        auto all = first.layer->parameters();
        for (const auto& one : last.layer->parameters()) all.push_back(one);
        return all;
      }(),
      0.1);
  for (int i = 0; i < 3; ++i) {
    sgd.zero_grad();
    last.forward(first.forward(x)).pow(2).sum().backward();
    sgd.step();
  }
  const auto a = agent("a", {{"b", from_to(0, 1)}, {"c", from_to(0, 2)}}),
             b = agent("b", {{"c", from_to(1, 2)}}), c = agent("c", {{"b", from_to(2, 1)}});
  for (const bool nested : {false, true}) {
    const auto one = a.remote<Part>("b", "part", 5, 7, 1),
               two = a.remote<Part>("c", "part", 7, 3, 2);
    auto parameters = one.rpc_sync<std::vector<rpc::RRef<at::Tensor>>>("parameters");
    for (const auto& more : two.rpc_sync<std::vector<rpc::RRef<at::Tensor>>>("parameters"))
      parameters.push_back(more);
    rpc::DistributedOptimizer optimizer(a, parameters, {.name = "sgd", .options = {{"lr", 0.1}}});
    const at::Tensor on_device = x.to(cuda_device(0));
    const int64_t before = cuda.counts().stops();
    for (int i = 0; i < 3; ++i) {
      rpc::AutogradContext context(a);
      const at::Tensor y = nested ? two.rpc_sync<at::Tensor>("forward_after", one, on_device)
                                  : two.rpc_sync<at::Tensor>(
                                        "forward", one.rpc_sync<at::Tensor>("forward", on_device));
      context.backward({y.pow(2).sum()});
      optimizer.step(context);
    }
    EXPECT_EQ(cuda.counts().stops(), before);
    EXPECT_TRUE(at::equal(one.rpc_sync<at::Tensor>("weight").cpu(), first.layer->weight)) << nested;
    EXPECT_TRUE(at::equal(two.rpc_sync<at::Tensor>("weight").cpu(), last.layer->weight)) << nested;
  }
}

// a calls b, which calls a: backward waits for another process, whose pass needs the thread that autograd has for the one device here.
TEST_F(DeviceMaps, BackwardThroughOneDeviceThereAndBack) {
  const auto a = agent("a", {{"b", from_to(0, 0)}}), b = agent("b", {{"a", from_to(0, 0)}});
  const auto one = b.remote<Part>("a", "part", 5, 7, 0);
  const auto two = a.remote<Part>("b", "part", 7, 3, 0);
  const auto here = a.remote<Part>("a", "part", 5, 7, 0);
  Part first(5, 7, at::kCPU), last(7, 3, at::kCPU);
  const at::Tensor scale = at::ones({}, cuda_device(0)).requires_grad_();
  const at::Tensor x = at::arange(20).view({4, 5}).cos();
  rpc::AutogradContext context(a);
  const auto y = two.rpc_sync<at::Tensor>("forward_after", here, x.to(cuda_device(0)) * scale);
  context.backward({y.sum()});
  const at::Tensor same = at::ones({}).requires_grad_();
  last.forward(first.forward(x * same)).sum().backward();
  EXPECT_TRUE(at::equal(context.gradient_of(scale).cpu(), same.grad()));
}

// Late gradients: of what stayed with its owner, and was used there again.
TEST_F(DeviceMaps, LateGradientsGoBackByTheMapOfTheCallThatBroughtThem) {
  const auto a = agent("a", {{"b", from_to(2, 1)}}), b = agent("b", {});
  const auto part = a.remote<Part>("b", "part", 5, 7, 1);
  const auto next = a.remote<Part>("b", "part", 7, 3, 1);
  const at::Tensor scale = at::ones({}, cuda_device(2)).requires_grad_();
  const at::Tensor x = at::arange(20).view({4, 5}).cos();
  rpc::AutogradContext context(a);
  const auto between = part.remote<at::Tensor>("forward", x.to(cuda_device(2)) * scale);
  const auto y = next.rpc_sync<at::Tensor>("forward_here", between);
  context.backward({y.sum()});
  Part first(5, 7, at::kCPU), last(7, 3, at::kCPU);
  const at::Tensor same = at::ones({}).requires_grad_();
  last.forward(first.forward(x * same)).sum().backward();
  EXPECT_TRUE(at::equal(context.gradient_of(scale).cpu(), same.grad()));
}

}  // namespace
}  // namespace lockstep::inline v0::testing
