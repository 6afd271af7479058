// Tensors, modules and autograd on devices that the host plays give the CPU's numbers, bit for bit.
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <functional>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::testing {
namespace {

class FakeCudaTest : public WithoutRaces {};

// The same bytes, wherever they are.
void expect_same(const at::Tensor& a, const at::Tensor& b, const std::string& what = "") {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(torch::equal(a.detach().cpu(), b.detach().cpu())) << what << '\n' << a << '\n' << b;
}

// What `work` gives on the device is what it gives on the CPU.
void expect_as_on_cpu(const std::function<at::Tensor(at::Device)>& work) {
  torch::manual_seed(7);
  const at::Tensor host = work(at::kCPU);
  torch::manual_seed(7);
  const at::Tensor device = work(at::Device(at::kCUDA, 0));
  EXPECT_TRUE(device.is_cuda());
  expect_same(device, host);
}

TEST_F(FakeCudaTest, LibtorchSeesTheDevices) {
  EXPECT_TRUE(torch::cuda::is_available());
  EXPECT_EQ(torch::cuda::device_count(), 3);
  const at::Tensor a = torch::ones({2, 3}, at::Device(at::kCUDA, 1));
  EXPECT_EQ(a.device().str(), "cuda:1");
  EXPECT_EQ((a + a).device().str(), "cuda:1");
  EXPECT_THROW(torch::ones({2}, at::Device(at::kCUDA, 3)), c10::Error);
}

TEST_F(FakeCudaTest, OtherOptionsAreRefused) {
  EXPECT_EQ(&FakeCuda::install({.devices = 3}), &cuda);
  EXPECT_THROW(FakeCuda::install({.devices = 2}), InvalidArgument);
  EXPECT_THROW(FakeCuda::install({.devices = 0}), InvalidArgument);
}

TEST_F(FakeCudaTest, MemoryIsNanUntilItIsWritten) {
  EXPECT_TRUE(torch::empty({4}, at::kCUDA).isnan().all().item<bool>());
  const auto halves = torch::empty({4}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  EXPECT_TRUE(halves.isnan().all().item<bool>());
}

TEST_F(FakeCudaTest, ADeviceCanBeFull) {
  const int64_t all = cuda.options().memory_bytes;
  EXPECT_THROW(torch::empty({all + 1}, at::TensorOptions(at::kCUDA).dtype(at::kByte)),
               c10::OutOfMemoryError);
}

TEST_F(FakeCudaTest, TensorsOfTwoDevicesDoNotMix) {
  const at::Tensor here = torch::ones({2}, at::Device(at::kCUDA, 0));
  const at::Tensor there = torch::ones({2}, at::Device(at::kCUDA, 1));
  EXPECT_THROW(here + there, c10::Error);
  EXPECT_THROW(here + torch::ones({2}), c10::Error);
  EXPECT_EQ((here + torch::tensor(3.0)).sum().item<double>(), 8) << "a number of the host may";
  expect_same(there.to(here.device()), here);
}

TEST_F(FakeCudaTest, ViewsAndShapes) {
  expect_as_on_cpu([](at::Device device) {
    const at::Tensor a = torch::arange(24, at::TensorOptions(device).dtype(at::kFloat));
    at::Tensor b = a.view({2, 3, 4}).transpose(1, 2);
    b.select(1, 2).mul_(10);
    b.slice(2, 1, 3).add_(0.5);
    return torch::cat({b.reshape({-1}), b.unfold(1, 2, 1).flatten(),
                       b.permute({2, 0, 1}).contiguous().flatten(),
                       a.unsqueeze(0).expand({2, 24}).flatten(), b.diagonal().flatten()});
  });
}

TEST_F(FakeCudaTest, OutputsAreResized) {
  expect_as_on_cpu([](at::Device device) {
    const at::Tensor a = torch::randn({5, 6}).to(device);
    at::Tensor out = torch::empty({0}, device);
    torch::mm_out(out, a, a.t());
    at::Tensor grown = torch::ones({2}, device);
    grown.resize_({6}).slice(0, 2).fill_(4);
    return torch::cat({out.flatten(), grown});
  });
}

TEST_F(FakeCudaTest, Indices) {
  expect_as_on_cpu([](at::Device device) {
    at::Tensor a = torch::randn({6, 4}).to(device);
    const at::Tensor rows = torch::tensor({4, 1, 1}).to(device);
    a.index_put_({rows}, torch::ones({4}, device), true);
    return torch::cat({a.index({a > 0}), a.index_select(0, rows).flatten(),
                       a.gather(0, rows.view({3, 1})).flatten(), a.masked_fill(a < 0, 2).flatten(),
                       std::get<0>(a.sort(1)).flatten()});
  });
}

TEST_F(FakeCudaTest, GeneratorsAreTheDevices) {
  torch::manual_seed(3);
  const at::Tensor first = torch::randn({5}, at::kCUDA);
  torch::manual_seed(3);
  torch::randn({100});  // of the CPU's
  expect_same(torch::randn({5}, at::kCUDA), first);
  const at::Tensor other = torch::randn({5}, at::Device(at::kCUDA, 1));
  expect_same(other, first, "each device has its own, with the same seed");
  at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCUDA, 0));
  const at::Tensor state = generator.get_state();
  const at::Tensor next = torch::dropout(torch::ones({100}, at::kCUDA), 0.5, true);
  generator.set_state(state);
  expect_same(torch::dropout(torch::ones({100}, at::kCUDA), 0.5, true), next);
}

TEST_F(FakeCudaTest, PinnedMemory) {
  const at::Tensor a = torch::ones({4}).pin_memory();
  EXPECT_TRUE(a.is_pinned());
  EXPECT_FALSE(torch::ones({4}).is_pinned());
  EXPECT_TRUE(torch::empty({4}, at::TensorOptions().pinned_memory(true)).is_pinned());
}

// A model with a convolution, batch norm, dropout, embedding, layer norm and attention.
struct Net : torch::nn::Module {
  Net() {
    embedding = register_module("embedding", torch::nn::Embedding(10, 8));
    convolution = register_module("convolution",
                                  torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    layer = register_module("layer", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    out = register_module("out", torch::nn::Linear(3 * 4 * 8, 5));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = layer(embedding(ids));  // n, 4, 8
    const at::Tensor attended = at::scaled_dot_product_attention(x, x, x);
    const at::Tensor y = torch::relu(norm(convolution(attended.unsqueeze(1))));
    return out(y.flatten(1));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::LayerNorm layer{nullptr};
  torch::nn::Linear out{nullptr};
};

template <typename Optimizer, typename Options>
at::Tensor train(at::Device device, const Options& options) {
  torch::manual_seed(11);
  Net net;
  net.to(device);
  Optimizer optimizer(net.parameters(), options);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor ids = torch::arange(12).add_(step).remainder_(10).view({3, 4}).to(device);
    const at::Tensor labels = torch::tensor({0, 1, 4}).to(device);
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(net.forward(ids), labels).backward();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0);
    optimizer.step();
  }
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : net.parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

TEST_F(FakeCudaTest, TrainingIsTheCpusBitForBit) {
  // The same kernel of attention on both, or composed on both.
  for (const bool fused : {true, false}) {
    at::globalContext().setSDPUseFlash(fused);
    at::globalContext().setSDPUseMemEfficient(fused);
    const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
    expect_same(train<torch::optim::SGD>(at::kCUDA, sgd), train<torch::optim::SGD>(at::kCPU, sgd));
    const torch::optim::AdamWOptions adam(0.01);
    expect_same(train<torch::optim::AdamW>(at::Device(at::kCUDA, 1), adam),
                train<torch::optim::AdamW>(at::kCPU, adam));
  }
  at::globalContext().setSDPUseFlash(true);
  at::globalContext().setSDPUseMemEfficient(true);
}

TEST_F(FakeCudaTest, AttentionIsOneOperation) {
  expect_as_on_cpu([](at::Device device) {
    const at::Tensor x = torch::randn({2, 3, 5, 8}).to(device).requires_grad_();
    const at::Tensor mask = torch::ones({5, 5}, at::kBool).tril().to(device);
    Counting counted;
    const at::Tensor y = at::scaled_dot_product_attention(x, x, x, {}, 0, /*is_causal=*/true);
    EXPECT_EQ(counted.operations(), device.is_cuda() ? 1 : 0);
    const at::Tensor masked = at::scaled_dot_product_attention(x, x, x, mask);
    (y + masked.pow(2)).sum().backward();
    return torch::cat({y.detach(), masked.detach(), x.grad()});
  });
}

TEST_F(FakeCudaTest, FusedAdamW) {
  expect_as_on_cpu([](at::Device device) {
    const auto numbers = [&] { return torch::randn({20}).to(device); };
    const at::Tensor parameter = numbers();
    const at::Tensor first = torch::zeros({20}, device);
    const at::Tensor second = torch::zeros({20}, device);
    const at::Tensor steps = torch::ones({}, device);
    const std::vector<at::Tensor> parameters{parameter}, gradients{numbers()}, firsts{first},
        seconds{second}, counts{steps};
    Counting counted;
    at::_fused_adamw_(parameters, gradients, firsts, seconds, {}, counts, 0.1, 0.9, 0.99, 0.01,
                      1e-8, false, false);
    if (device.is_cuda()) {
      EXPECT_EQ(counted.operations(), 1);
      EXPECT_EQ(counted.stops(), 0);
    }
    return torch::cat({parameter, first, second});
  });
}

TEST_F(FakeCudaTest, ForeachIsOneOperation) {
  std::vector<at::Tensor> many;
  for (int i = 0; i < 5; ++i) many.push_back(torch::full({i + 1}, 1.0 * i, at::kCUDA));
  Counting counted;
  at::_foreach_mul_(many, 2);
  const std::vector<at::Tensor> norms = at::_foreach_norm(many);
  EXPECT_EQ(counted.operations(), 2);
  EXPECT_EQ(many[4][0].item<float>(), 8);
  EXPECT_TRUE(norms[2].is_cuda());
}

TEST_F(FakeCudaTest, GradScalersKernels) {
  const at::Tensor gradient = torch::tensor({2.0f, 4.0f}).to(at::kCUDA);
  at::Tensor found = torch::zeros({1}, at::kCUDA);
  at::_amp_foreach_non_finite_check_and_unscale_({gradient}, found,
                                                 torch::full({1}, 0.5f, at::kCUDA));
  EXPECT_EQ(found.item<float>(), 0);
  EXPECT_EQ(gradient.sum().item<float>(), 3);
  at::Tensor scale = torch::full({1}, 8.0f, at::kCUDA);
  at::Tensor tracker = torch::zeros({1}, at::TensorOptions(at::kCUDA).dtype(at::kInt));
  at::_amp_update_scale_(scale, tracker, torch::ones({1}, at::kCUDA), 2, 0.5, 100);
  EXPECT_EQ(scale.item<float>(), 4);
}

TEST_F(FakeCudaTest, Autocast) {
  const at::Tensor a = torch::randn({4, 4}, at::kCUDA);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  const at::Tensor product = torch::mm(a, a);
  const at::Tensor sum = torch::softmax(product, 1);
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  at::autocast::clear_cache();
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
}

TEST_F(FakeCudaTest, HostStopsAreCountedByCause) {
  const at::Tensor a = torch::ones({4}, at::kCUDA);
  Counting counted;
  a.mul_(2);
  EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
  a.sum().item<float>();
  torch::equal(a, a);
  a.nonzero();
  a.index({a > 1});
  a.cpu();
  torch::ones({4}).to(at::kCUDA);
  torch::ones({4}).to(at::kCUDA, /*non_blocking=*/true);  // not pinned, so it blocks
  torch::ones({4}).pin_memory().to(at::kCUDA, /*non_blocking=*/true);
  a.to(at::kCPU, /*non_blocking=*/true);  // to pinned memory, which libtorch takes for it
  torch::cuda::synchronize();
  EXPECT_EQ(counted.counts().text(),
            std::to_string(counted.operations()) +
                " operations, 8 host stops: 2 item, 2 size of a result, 1 copy to host, 2 copy to "
                "device, 1 device");
  const std::vector<std::string> places = counted.stop_places();
  ASSERT_EQ(places.size(), 8u);
  EXPECT_EQ(places[0].find("item in aten::_local_scalar_dense on cuda:0, stream 0"), 0u)
      << places[0];
  EXPECT_NE(places[0].find("called from"), std::string::npos) << places[0];
}

}  // namespace
}  // namespace lockstep::inline v0::testing
