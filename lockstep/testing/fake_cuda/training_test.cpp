// Lockstep's own training on devices that the host plays, two ranks as threads, each on a device:
// the CPU's numbers, no races, and what a step costs.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/core/mutex.h"
#include "lockstep/optim/adam.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/fake_cuda/staged_ranks_test.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::testing {
namespace {

constexpr int kTrainingRanks = 2;
constexpr int kTrainingSteps = 4;

// No random numbers, for threads share their generator.
struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    second = register_module("second", torch::nn::Linear(8, 4));
    const torch::NoGradGuard no_grad;
    double value = 0;
    for (at::Tensor& p : parameters())
      p.copy_(torch::linspace(-0.5, 0.5, p.numel()).view(p.sizes()).add(value += 0.01));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(norm(first(x)))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(SmallNet);

struct Trained {
  at::Tensor parameters;  // of rank 0, on the CPU
  FakeCudaCounts step;    // the last one of rank 0
  std::vector<std::string> stops;
};

// A rank's step of one way of training, for a model that is on the device.
using Step = std::function<void(const at::Tensor& inputs, const at::Tensor& targets)>;
using Way = std::function<Step(Communicator& comm, SmallNet model)>;

// What runs it on ranks: over local, or over nccl.
using Ranks = std::function<void(const std::function<void(Communicator&)>&)>;

void over_local(const std::function<void(Communicator&)>& fn) {
  run_threads(kTrainingRanks, fn);
}
void over_nccl(const std::function<void(Communicator&)>& fn) {
  run_on_nccl(kTrainingRanks, fn);
}
void over_staged(const std::function<void(Communicator&)>& fn) {
  run_on_staged(kTrainingRanks, fn);
}
void over_peer(const std::function<void(Communicator&)>& fn) {
  run_on_peer(kTrainingRanks, fn);
}

Trained train(at::DeviceType type, const Way& way, const Ranks& on_ranks) {
  Trained result;
  Mutex mutex;
  on_ranks([&](Communicator& comm) {
    at::set_num_threads(1);
    const at::Device device(
        type, type == at::kCPU ? at::DeviceIndex{-1} : static_cast<at::DeviceIndex>(comm.rank()));
    SmallNet model;
    model->to(device);
    const Step step = way(comm, model);
    for (int i = 0; i < kTrainingSteps; ++i) {
      const at::Tensor all =
          torch::arange(8 * 6).add(i).to(torch::kFloat).remainder(11).div(7).view({8, 6});
      const at::Tensor inputs = all.chunk(kTrainingRanks)[comm.rank()].to(device);
      const at::Tensor targets = inputs.narrow(1, 0, 4).mul(0.5);
      Counting counted;
      step(inputs, targets);
      const MutexLock lock(mutex);
      if (comm.rank() == 0 && i == kTrainingSteps - 1)
        result.step = counted.counts(), result.stops = counted.stop_places();
    }
    std::vector<at::Tensor> flat;
    for (const at::Tensor& p : model->parameters()) flat.push_back(p.detach().flatten().cpu());
    const MutexLock lock(mutex);
    if (comm.rank() == 0) result.parameters = torch::cat(flat);
  });
  return result;
}

class TrainingOnFakeCuda : public ::testing::Test {
 protected:
  // Says what a step costs, and where the host stops; gives what was trained on the devices.
  Trained expect_as_on_cpu(const std::string& name, const Way& way, double tolerance = 1e-6,
                           const Ranks& on_ranks = over_local) {
    const Trained host = train(at::kCPU, way, over_local);
    for (const int one : {0, 1, 2}) torch::cuda::synchronize(one);
    cuda.take_races();
    Trained device = train(at::kCUDA, way, on_ranks);
    for (const Race& race : cuda.take_races()) ADD_FAILURE() << name << ": " << race.text();
    const double difference = (device.parameters - host.parameters).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << name;
    std::cout << name << ", a step: " << device.step.text() << "; " << difference
              << " from the CPU's parameters\n";
    for (const std::string& stop : device.stops) std::cout << "  " << stop << '\n';
    return device;
  }

  FakeCuda& cuda = FakeCuda::install({.devices = 3});
};

Step ddp_step_with(const DdpOptions& options, Communicator& comm, const SmallNet& model) {
  auto wrapped = std::make_shared<DistributedDataParallel<SmallNet>>(model, comm, options);
  auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(),
                                                       torch::optim::SGDOptions(0.1).momentum(0.9));
  return [=](const at::Tensor& inputs, const at::Tensor& targets) {
    optimizer->zero_grad();
    torch::mse_loss((*wrapped)(inputs), targets).backward();
    optimizer->step();
  };
}

Step ddp_step(Communicator& comm, const SmallNet& model) {
  return ddp_step_with({}, comm, model);
}

// A bucket for each layer, and nothing that ranks would agree on by numbers of the host.
Step static_ddp_step(Communicator& comm, const SmallNet& model) {
  return ddp_step_with({.bucket_sizes = {.first = 128, .rest = 128}, .static_graph = true}, comm,
                       model);
}

TEST_F(TrainingOnFakeCuda, DdpOverStagedAndPeerHasTheBitsOfTheCpuAndStopsNoHost) {
  const Trained staged = expect_as_on_cpu("DDP over staged", static_ddp_step, 0, over_staged);
  EXPECT_EQ(staged.step.stops(), 0);
  const Trained peer = expect_as_on_cpu("DDP over peer", static_ddp_step, 0, over_peer);
  EXPECT_EQ(peer.step.stops(), 0);
}

TEST_F(TrainingOnFakeCuda, Ddp) {
  expect_as_on_cpu("DDP over local", ddp_step);
  const Trained trained = expect_as_on_cpu("DDP over nccl", ddp_step, 1e-6, over_nccl);
  EXPECT_EQ(trained.step.stops(), 0) << "what ranks agree on touches no device";
}

TEST_F(TrainingOnFakeCuda, AModelOnTheHostOverNcclGivesADeviceNothing) {
  const Trained expected = train(at::kCPU, ddp_step, over_local);
  const Trained trained = train(at::kCPU, ddp_step, over_nccl);
  EXPECT_TRUE(torch::equal(trained.parameters, expected.parameters));
  EXPECT_EQ(trained.step.operations, 0) << trained.step.text();
}

TEST_F(TrainingOnFakeCuda, FusedAdamWIsTwoOperations) {
  const Trained trained =
      expect_as_on_cpu("FusedAdamW alone", [](Communicator&, const SmallNet& model) {
        auto optimizer = std::make_shared<optim::FusedAdamW>(model->parameters());
        return [=](const at::Tensor& inputs, const at::Tensor& targets) {
          optimizer->zero_grad();
          torch::mse_loss(model.ptr()->forward(inputs), targets).backward();
          optimizer->step();
        };
      });
  EXPECT_EQ(trained.step.stops(), 0);
}

TEST_F(TrainingOnFakeCuda, ZeroStages) {
  for (const int stage : {1, 2}) {
    expect_as_on_cpu("ZeRO " + std::to_string(stage) + " over local",
                     [stage](Communicator& comm, const SmallNet& model) {
                       NamedTensors parameters;
                       for (const auto& entry : model->named_parameters())
                         parameters.emplace_back(entry.key(), entry.value());
                       auto optimizer = std::make_shared<ZeroOptimizer>(
                           comm, parameters, torch::optim::AdamWOptions(0.01),
                           ZeroOptions{.stage = stage, .one_copy = false});
                       return [=](const at::Tensor& inputs, const at::Tensor& targets) {
                         torch::mse_loss(model.ptr()->forward(inputs), targets).backward();
                         optimizer->step();
                         optimizer->zero_grad();
                       };
                     });
  }
}

TEST_F(TrainingOnFakeCuda, MixedPrecision) {
  expect_as_on_cpu(
      "DDP with bfloat16 and a scaler",
      [](Communicator& comm, const SmallNet& model) {
        auto wrapped = std::make_shared<DistributedDataParallel<SmallNet>>(model, comm);
        auto optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
        auto scaler =
            std::make_shared<amp::GradScaler>(comm, amp::GradScalerOptions{.init_scale = 64});
        return [=](const at::Tensor& inputs, const at::Tensor& targets) {
          optimizer->zero_grad();
          at::Tensor loss;
          {
            const amp::Autocast autocast(inputs.device().type(), at::kBFloat16);
            loss = torch::mse_loss((*wrapped)(inputs), targets);
          }
          scaler->scale(loss).backward();
          scaler->step(*optimizer);
          scaler->update();
        };
      },
      // What autocast leaves in float32 differs between the two device types.
      0.02);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
