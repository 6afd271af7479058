// ZeRO's third stage on devices: what a layer's parameters are, comes as it computes, and goes.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/mutex.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/zero/layer_net.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/fake_cuda/staged_ranks_test.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::testing {
namespace {

using zero_test::LayerNet;

class UnitsOnFakeCuda : public WithoutRaces {};

constexpr int kUnitLayers = 6, kUnitSteps = 5, kUnitRanks = 3;
constexpr int64_t kUnitWidth = 64;

NamedTensors named(const LayerNet& net) {
  return to_named_tensors(net->named_parameters());
}

at::Tensor batch_of(int rank, int step) {
  return torch::arange(4 * 7)
      .add(17 * rank + 3 * step)
      .to(torch::kFloat)
      .remainder(11)
      .div(7)
      .view({4, 7});
}

struct OfRankZero {
  at::Tensor parameters;  // after the last step
  int64_t stops = 0;      // of the last step
};

using RunRanks = std::function<void(const std::function<void(Communicator&)>&)>;

struct UnitWay {
  const char* name;
  ZeroOptions options;
  at::ScalarType dtype = at::kFloat;
  // Gradients are clipped, those of the third step are infinite, and it is left out.
  bool clips = false;
};

OfRankZero train_units(const RunRanks& on_ranks, const UnitWay& way) {
  OfRankZero result;
  Mutex mutex;
  on_ranks([&](Communicator& comm) {
    at::set_num_threads(1);
    LayerNet net(kUnitLayers, kUnitWidth, way.dtype);
    net->to(comm.device());
    ZeroOptions options = way.options;
    if (options.stage == 3) options.units.model = net.ptr();
    ZeroOptimizer optimizer(comm, named(net), torch::optim::AdamWOptions(0.01), options);
    for (int step = 0; step < kUnitSteps; ++step) {
      const at::Tensor x = batch_of(comm.rank(), step).to(comm.device(), way.dtype);
      const Counting counted;
      const double times = way.clips && step == 2 ? std::numeric_limits<double>::infinity() : 1.0;
      net->forward(x).square().mean().mul(times).backward();
      if (way.clips)
        optimizer.step({.max_norm = 0.01, .on_non_finite = optim::NonFinite::kSkip});
      else
        optimizer.step();
      const MutexLock lock(mutex);
      if (comm.rank() == 0) result.stops = counted.stops();
    }
    const Safetensors state = optimizer.state_on_root();
    if (comm.rank() == 0) {
      EXPECT_EQ(state.find("0.step")->item<int64_t>(), kUnitSteps - (way.clips ? 1 : 0));
    }
    const auto held = optimizer.whole_parameters();
    std::vector<at::Tensor> flat;
    for (const at::Tensor& p : net->parameters()) flat.push_back(p.detach().flatten().cpu());
    const MutexLock lock(mutex);
    if (comm.rank() == 0) result.parameters = torch::cat(flat).to(torch::kDouble);
  });
  return result;
}

void over_host(const std::function<void(Communicator&)>& fn) {
  run_threads(kUnitRanks, fn);
}

class UnitWaysOnFakeCuda : public UnitsOnFakeCuda, public ::testing::WithParamInterface<UnitWay> {};

TEST_P(UnitWaysOnFakeCuda, HaveTheCpusNumbersAndStopNoHost) {
  UnitWay plain = GetParam();
  plain.options.units.reshard_after_forward = true;
  const OfRankZero host = train_units(over_host, plain);
  const std::vector<std::pair<std::string, RunRanks>> engines = {
      {"staged", [](const auto& fn) { run_on_staged(kUnitRanks, fn); }},
      {"nccl", [](const auto& fn) { run_on_nccl(kUnitRanks, fn); }}};
  for (const auto& [engine, on_ranks] : engines) {
    const OfRankZero device = train_units(on_ranks, GetParam());
    EXPECT_LE((device.parameters - host.parameters).abs().max().item<double>(),
              plain.dtype == at::kFloat ? 1e-6 : 0.02)
        << engine;
    EXPECT_EQ(device.stops, 0) << engine;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, UnitWaysOnFakeCuda,
    ::testing::Values(UnitWay{"fetched_twice", {.stage = 3}},
                      UnitWay{"kept_until_backward",
                              {.stage = 3, .units = {.reshard_after_forward = false}}},
                      UnitWay{"accumulated", {.stage = 3, .accumulate = true}},
                      UnitWay{"clipped", {.stage = 3}, at::kFloat, true},
                      UnitWay{"clipped_whole", {.stage = 2, .one_copy = false}, at::kFloat, true},
                      UnitWay{"masters", {.stage = 3, .master_weights = true}, at::kBFloat16}),
    [](const auto& info) { return std::string(info.param.name); });

// Two layers are there at once, and what a rank keeps of the others.
TEST_F(UnitsOnFakeCuda, ADeviceHasTwoLayersAtOnce) {
  run_on_nccl(kUnitRanks, [](Communicator& comm) {
    const int64_t before = device::memory_use(comm.device())->in_use;
    LayerNet net(kUnitLayers, kUnitWidth, at::kFloat);
    int64_t all = 0;
    for (const at::Tensor& p : net->parameters()) all += static_cast<int64_t>(p.nbytes());
    net->to(comm.device());
    ZeroOptimizer optimizer(comm, named(net), torch::optim::AdamWOptions(0.01),
                            {.stage = 3, .accumulate = true, .units = {.model = net.ptr()}});
    const auto parameters_now = [&] {
      const ZeroMemory memory = optimizer.memory();
      return device::memory_use(comm.device())->in_use - before - memory.gradients -
             memory.buffers - memory.state;
    };
    EXPECT_LT(parameters_now(), all / 2) << "of " << all;
    const torch::NoGradGuard no_grad;
    const int64_t rest = device::memory_use(comm.device())->in_use;
    device::reset_peak_memory(comm.device());
    net->forward(batch_of(comm.rank(), 0).to(comm.device()));
    // A layer makes a matrix of half its size.
    EXPECT_LT(device::memory_use(comm.device())->peak - rest, all * 3 / kUnitLayers);
    EXPECT_EQ(optimizer.memory(), [&] {
      ZeroMemory planned = optimizer.planned_memory();
      planned.state = 0;
      return planned;
    }());
    {
      const auto held = optimizer.whole_parameters();
      EXPECT_GE(parameters_now(), all);
    }
  });
}

// Into another model, as a run that goes on does it: the next step is that of the model it was taken of.
TEST_F(UnitsOnFakeCuda, WhatIsLoadedStays) {
  for (const bool masters : {false, true}) {
    const TestDirectory dir;
    run_on_nccl(2, [&](Communicator& comm) {
      at::set_num_threads(1);
      const at::ScalarType dtype = masters ? at::kBFloat16 : at::kFloat;
      LayerNet nets[2] = {LayerNet(3, kUnitWidth, dtype), LayerNet(3, kUnitWidth, dtype)};
      std::vector<std::unique_ptr<ZeroOptimizer>> optimizers;
      for (LayerNet& net : nets) {
        net->to(comm.device());
        const torch::NoGradGuard no_grad;
        for (at::Tensor& p : net->parameters()) p.mul_(1.0 - 0.5 * optimizers.size());
        optimizers.push_back(std::make_unique<ZeroOptimizer>(
            comm, named(net), torch::optim::AdamWOptions(0.01),
            ZeroOptions{.stage = 3, .master_weights = masters, .units = {.model = net.ptr()}}));
      }
      const auto step = [&](int which, int number) {
        const at::Tensor x = batch_of(comm.rank(), number).to(comm.device(), dtype);
        nets[which]->forward(x).square().mean().backward();
        optimizers[which]->step();
      };
      const auto values = [&](int which) {
        const auto held = optimizers[which]->whole_parameters();
        std::vector<at::Tensor> all;
        for (const at::Tensor& p : nets[which]->parameters()) all.push_back(p.detach().cpu());
        return all;
      };
      for (int number = 0; number < 2; ++number) step(0, number);
      step(1, 7);
      const std::vector<at::Tensor> expected = values(0);
      Checkpoint share;
      if (comm.rank() == 0) {
        const NamedTensors parameters = named(nets[0]);
        for (size_t i = 0; i < expected.size(); ++i)
          share.model.tensors.emplace_back(parameters[i].first, expected[i]);
        share.trainer_json = "{}";
      }
      share.optimizer = optimizers[0]->own_state();
      write_checkpoint(comm, dir / "c", share);
      const Checkpoint checkpoint = read_checkpoint(dir / "c");
      {
        const auto held = optimizers[1]->whole_parameters();
        const torch::NoGradGuard no_grad;
        for (auto& [name, parameter] : named(nets[1]))
          parameter.copy_(*checkpoint.model.find(name));
        optimizers[1]->load_state(checkpoint.optimizer, "a test");
      }
      for (int number = 2; number < 4; ++number) {
        const std::vector<at::Tensor> first = values(0), second = values(1);
        for (size_t i = 0; i < first.size(); ++i)
          EXPECT_TRUE(torch::equal(first[i], second[i])) << i << " before step " << number;
        for (const int which : {0, 1}) step(which, number);
      }
    });
  }
}

TEST_F(UnitsOnFakeCuda, WhatIsAwayIsNamed) {
  run_on_nccl(2, [](Communicator& comm) {
    LayerNet net(2, kUnitWidth, at::kFloat);
    net->to(comm.device());
    ZeroOptimizer optimizer(comm, named(net), torch::optim::AdamWOptions(0.01),
                            {.stage = 3, .units = {.model = net.ptr()}});
    try {
      net->layer(0)->parameters()[0].add(1);
      ADD_FAILURE() << "was read";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("'layers.0'"), std::string::npos) << error.what();
    }
  });
}

TEST_F(UnitsOnFakeCuda, CopiesAreSharedOnTheHostAlone) {
  run_on_nccl(2, [](Communicator& comm) {
    LayerNet net(2, kUnitWidth, at::kFloat);
    net->to(comm.device());
    EXPECT_THROW(ZeroOptimizer(comm, named(net), torch::optim::AdamWOptions(0.01),
                               {.stage = 3, .copies = {0, 1}}),
                 InvalidArgument);
  });
}

}  // namespace
}  // namespace lockstep::testing
