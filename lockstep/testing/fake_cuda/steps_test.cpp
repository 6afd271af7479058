// Steps for which the host does not wait, on devices that it plays: loss scaling, clipping and the optimizers, whose
// numbers are the CPU's.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/optim/lamb.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/ddp/power_sgd.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::testing {
namespace {

class StepsOnFakeCuda : public WithoutRaces {};

constexpr int kSteps = 6;
using Optimizer = torch::optim::Optimizer;
using Make = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

std::vector<at::Tensor> parameters_on(at::Device device) {
  std::vector<at::Tensor> result;
  for (const int64_t size : {5, 12, 3})
    result.push_back(torch::linspace(-0.5, 0.7, size).to(device).requires_grad_());
  return result;
}

// Of a step; some hold an infinity.
void give_gradients(const std::vector<at::Tensor>& parameters, int step, bool infinite,
                    double scale) {
  for (const at::Tensor& p : parameters) {
    at::Tensor gradient = torch::arange(p.numel()).to(torch::kFloat).add(step).remainder(7).div(5);
    gradient.mul_(scale);
    if (infinite) gradient[1] = std::numeric_limits<float>::infinity();
    p.mutable_grad() = gradient.to(p.device());
  }
}

struct Outcome {
  at::Tensor parameters;
  double scale = 0;
  std::vector<int64_t> steps;  // counted by the optimizer
};

Outcome outcome_of(const std::vector<at::Tensor>& parameters, const Optimizer& optimizer) {
  Outcome result;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& p : parameters) flat.push_back(p.detach().cpu());
  result.parameters = torch::cat(flat);
  for (const auto& [name, tensor] : optimizer_state(optimizer).tensors)
    if (name.ends_with(".step")) result.steps.push_back(tensor.item<int64_t>());
  return result;
}

Outcome train_scaled(const Make& make, at::Device device) {
  const auto parameters = parameters_on(device);
  const auto optimizer = make(parameters);
  amp::GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  for (int step = 0; step < kSteps; ++step) {
    // The scale as of now; reading it is the test's own stop.
    give_gradients(parameters, step, step == 2 || step == 3, scaler.current_scale());
    const at::Tensor loss = torch::ones({}, device);
    Counting counted;
    scaler.scale(loss);
    scaler.step(*optimizer);
    scaler.update();
    // A parameter's first step waits.
    if (step > 0) {
      EXPECT_EQ(counted.stops(), 0) << step << ": " << counted.counts().text();
    }
  }
  Outcome result = outcome_of(parameters, *optimizer);
  result.scale = scaler.current_scale();
  return result;
}

void expect_equal(const Outcome& device, const Outcome& host) {
  EXPECT_LE((device.parameters - host.parameters).abs().max().item<double>(), 1e-5);
  EXPECT_EQ(device.scale, host.scale);
  EXPECT_EQ(device.steps, host.steps);
}

const std::vector<std::pair<std::string, Make>>& optimizers() {
  static const std::vector<std::pair<std::string, Make>> all{
      {"FusedAdamW",
       [](auto p) {
         return std::make_unique<optim::FusedAdamW>(std::move(p), torch::optim::AdamWOptions(0.1));
       }},
      {"FusedAdam",
       [](auto p) {
         return std::make_unique<optim::FusedAdam>(std::move(p),
                                                   torch::optim::AdamOptions(0.1).amsgrad(true));
       }},
      {"FusedSGD",
       [](auto p) {
         return std::make_unique<optim::FusedSGD>(
             std::move(p), torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.1));
       }},
      {"Lamb", [](auto p) {
         return std::make_unique<optim::Lamb>(std::move(p), torch::optim::AdamWOptions(0.1));
       }}};
  return all;
}

// Steps 2 and 3 are left out, by the device; the counts of Adam's steps know it.
TEST_F(StepsOnFakeCuda, ScaledStepsAreTheCpus) {
  for (const auto& [name, make] : optimizers()) {
    SCOPED_TRACE(name);
    expect_equal(train_scaled(make, {at::kCUDA, 0}), train_scaled(make, at::kCPU));
  }
}

TEST_F(StepsOnFakeCuda, ClippedStepsAreTheCpus) {
  for (const auto& [name, make] : optimizers()) {
    SCOPED_TRACE(name);
    const auto train = [&make = make](at::Device device) {
      const auto parameters = parameters_on(device);
      const auto optimizer = make(parameters);
      for (int step = 0; step < kSteps; ++step) {
        give_gradients(parameters, step, step == 3, 1);
        Counting counted;
        dynamic_cast<optim::FusedStep&>(*optimizer)
            .step({.max_norm = 0.5, .on_non_finite = optim::NonFinite::kSkip});
        if (step > 0) {
          EXPECT_EQ(counted.stops(), 0) << step << ": " << counted.counts().text();
        }
      }
      return outcome_of(parameters, *optimizer);
    };
    expect_equal(train({at::kCUDA, 0}), train(at::kCPU));
  }
}

// Where other parameters step than before, the counts are settled first.
TEST_F(StepsOnFakeCuda, StepsOfOtherParametersKeepTheirCounts) {
  const auto train = [](at::Device device) {
    const auto parameters = parameters_on(device);
    optim::FusedAdamW optimizer(parameters, torch::optim::AdamWOptions(0.1));
    for (int step = 0; step < kSteps; ++step) {
      give_gradients(parameters, step, false, 1);
      if (step == 3) parameters[1].mutable_grad().reset();
      optimizer.step({.found_inf = torch::full({1}, step == 2 || step == 4 ? 1.0 : 0.0, device)});
    }
    return outcome_of(parameters, optimizer);
  };
  const Outcome device = train({at::kCUDA, 0});
  expect_equal(device, train(at::kCPU));
  EXPECT_EQ(device.steps, (std::vector<int64_t>{4, 3, 4}));
}

TEST_F(StepsOnFakeCuda, ClippingGradients) {
  const auto clip = [](at::Device device) {
    const auto parameters = parameters_on(device);
    give_gradients(parameters, 1, false, 1);
    Counting counted;
    const at::Tensor norm = optim::clip_grad_norm_(parameters, 0.5);
    EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
    std::vector<at::Tensor> flat{norm.cpu().to(torch::kFloat).view({1})};
    for (const at::Tensor& p : parameters) flat.push_back(p.grad().cpu());
    return torch::cat(flat);
  };
  const at::Tensor host = clip(at::kCPU);
  EXPECT_LE((clip({at::kCUDA, 0}) - host).abs().max().item<double>(), 1e-6);
  EXPECT_NEAR(host.narrow(0, 1, host.numel() - 1).norm().item<double>(), 0.5, 1e-5);
}

TEST_F(StepsOnFakeCuda, TheNormOfManyTensorsIsOneStop) {
  const auto parameters = parameters_on({at::kCUDA, 0});
  Counting counted;
  optim::global_norm(parameters);
  EXPECT_EQ(counted.stops(), 1) << counted.counts().text();
}

// The ranks agree on their devices.
TEST_F(StepsOnFakeCuda, ScalersAgreeOverNccl) {
  run_on_nccl(2, [](Communicator& comm) {
    const auto parameters = parameters_on(comm.device());
    optim::FusedAdamW optimizer(parameters, torch::optim::AdamWOptions(0.1));
    amp::GradScaler scaler(comm, {.init_scale = 8});
    for (int step = 0; step < kSteps; ++step) {
      give_gradients(parameters, step, step == 3 && comm.rank() == 1, 8);
      Counting counted;
      scaler.step(optimizer);
      scaler.update();
      if (step > 0) {
        EXPECT_EQ(counted.stops(), 0) << step << ": " << counted.counts().text();
      }
    }
    EXPECT_EQ(scaler.current_scale(), 4);
    EXPECT_EQ(outcome_of(parameters, optimizer).steps, (std::vector<int64_t>(3, kSteps - 1)));
  });
}

struct WideNetImpl : torch::nn::Module {
  WideNetImpl() {
    first = register_module("first", torch::nn::Linear(16, 16));
    second = register_module("second", torch::nn::Linear(16, 16));
    for (const char* name : {"a", "b", "c"}) register_buffer(name, torch::zeros({4}));
    const torch::NoGradGuard no_grad;
    double value = 0;
    for (at::Tensor& p : parameters())
      p.copy_(torch::linspace(-0.5, 0.5, p.numel()).view(p.sizes()).add(value += 0.01));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(WideNet);

// The gradients after some steps, on rank 0, and what the last one gave to its device.
at::Tensor averaged(bool on_nccl, bool compressed, FakeCudaCounts* last,
                    at::DeviceType type = at::kCUDA) {
  at::Tensor result;
  const auto body = [&](Communicator& comm) {
    at::set_num_threads(1);
    const at::Device device = on_nccl && type == at::kCUDA ? comm.device() : at::Device(at::kCPU);
    WideNet net;
    net->to(device);
    DdpOptions options{.static_graph = true};
    if (compressed) options.hook = make_power_sgd_hook({.rank = 1, .start_step = 1});
    DistributedDataParallel<WideNet> model(net, comm, options);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = torch::arange(64)
                               .add(comm.rank() * 3 + step)
                               .remainder(11)
                               .div(7)
                               .view({4, 16})
                               .to(device);
      net->zero_grad();
      Counting counted;
      const auto before = model.comm().stats().collectives;
      model(x).square().mean().backward();
      if (comm.rank() == 0) *last = counted.counts();
      // The buffers, and the bucket.
      if (step == 3 && !compressed) {
        EXPECT_EQ(model.comm().stats().collectives - before, 2);
      }
    }
    if (comm.rank() != 0) return;
    std::vector<at::Tensor> flat;
    for (const at::Tensor& p : net->parameters()) flat.push_back(p.grad().flatten().cpu());
    result = torch::cat(flat);
  };
  if (on_nccl)
    run_on_nccl(2, body);
  else
    run_threads(2, body);
  return result;
}

TEST_F(StepsOnFakeCuda, DdpWithAStaticGraph) {
  for (const bool compressed : {false, true}) {
    FakeCudaCounts host, device;
    const at::Tensor expected = averaged(false, compressed, &host);
    const at::Tensor found = averaged(true, compressed, &device);
    EXPECT_LE((found - expected).abs().max().item<double>(), 1e-5) << compressed;
    EXPECT_EQ(device.stops(), 0) << device.text();
    // A gradient is not copied by an operation of its own.
    if (!compressed) {
      EXPECT_EQ(device.copies, 0) << device.text();
    }
  }
}

TEST_F(StepsOnFakeCuda, AModelOnTheCpuKeepsItsBucketsThereOverNccl) {
  FakeCudaCounts counts;
  const at::Tensor expected = averaged(false, false, &counts);
  EXPECT_LE((averaged(true, false, &counts, at::kCPU) - expected).abs().max().item<double>(), 1e-6);
}

// Whoever writes into the parameters of a model with masters is followed without a question.
TEST_F(StepsOnFakeCuda, ZeroWithMastersAsksNothing) {
  run_threads(2, [](Communicator& comm) {
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(comm.rank()));
    const at::Tensor weight =
        torch::linspace(-0.5, 0.5, 32).to(device, torch::kBFloat16).requires_grad_();
    ZeroOptimizer optimizer(comm, {{"weight", weight}}, torch::optim::AdamWOptions(0.01),
                            ZeroOptions{.stage = 1, .one_copy = false, .master_weights = true});
    for (int step = 0; step < 2; ++step) {
      weight.square().sum().backward();
      Counting counted;
      optimizer.step();
      optimizer.zero_grad();
      for (const std::string& place : counted.stop_places())
        EXPECT_EQ(place.find("aten::equal"), std::string::npos) << place;
    }
  });
}

}  // namespace
}  // namespace lockstep::inline v0::testing
