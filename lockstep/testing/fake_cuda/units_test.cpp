// ZeRO's third stage on devices: what a layer's parameters are, comes as it computes, and goes.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/comm/backend/backend.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/mutex.h"
#include "lockstep/device/memory.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/optim/adam.h"
#include "lockstep/parallel/zero/layer_net.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/fake_cuda/staged_ranks_test.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::testing {
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
  bool recomputes = false;  // layers are computed again in backward, each with what it fetches
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
    if (way.recomputes)
      checkpoint_layers<at::Tensor(const at::Tensor&, double)>(*net, {.names = {"layers.*"}});
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
    ::testing::Values(
        UnitWay{"fetched_twice", {.stage = 3}},
        UnitWay{"kept_until_backward", {.stage = 3, .units = {.reshard_after_forward = false}}},
        UnitWay{"accumulated", {.stage = 3, .accumulate = true}},
        UnitWay{"clipped", {.stage = 3}, at::kFloat, true},
        UnitWay{"clipped_whole", {.stage = 2, .one_copy = false}, at::kFloat, true},
        UnitWay{
            .name = "recomputed", .options = {.stage = 3, .accumulate = true}, .recomputes = true},
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

// From the host, or without values: no device has all layers before they are divided. Saved and loaded, none has them either.
TEST_F(UnitsOnFakeCuda, ADeviceNeverHasAllLayers) {
  constexpr int kMany = 16;
  const auto value = [](const std::string& name, int64_t i) {
    return std::sin(0.7 * static_cast<double>(i) + static_cast<double>(name.size()));
  };
  for (const bool drawn : {false, true}) {
    run_on_nccl(kUnitRanks, [&](Communicator& comm) {
      device::reset_peak_memory(comm.device());
      const int64_t before = device::memory_use(comm.device())->in_use;
      LayerNet net(kMany, kUnitWidth, at::kFloat);
      LayerNet values(kMany, kUnitWidth, at::kFloat);
      int64_t all = 0;
      for (at::Tensor& p : net->parameters()) {
        const torch::NoGradGuard no_grad;
        all += static_cast<int64_t>(p.nbytes());
        // Rank 0's are taken, or none.
        if (drawn || comm.rank() != 0) p.fill_(7);
      }
      ZeroOptions options{.stage = 3, .accumulate = true, .units = {.model = net.ptr()}};
      if (drawn) {
        options.initial = [&](const std::string& name, int64_t begin, const at::Tensor& part) {
          for (int64_t i = 0; i < part.numel(); ++i)
            part.mutable_data_ptr<float>()[i] = static_cast<float>(value(name, begin + i));
        };
        for (auto& [name, tensor] : named(values)) {
          const torch::NoGradGuard no_grad;
          float* const data = tensor.mutable_data_ptr<float>();
          for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = static_cast<float>(value(name, i));
        }
      }
      ZeroOptimizer optimizer(comm, named(net), torch::optim::AdamWOptions(0.01), options);
      // Of parameters, beside what stays of the rest.
      const auto peak = [&] {
        const ZeroMemory memory = optimizer.memory();
        return device::memory_use(comm.device())->peak - before - memory.gradients -
               memory.buffers - memory.state;
      };
      EXPECT_LT(peak(), all * 6 / 10) << "made, of " << all;
      const SlicedTensors own = optimizer.own_parameters();
      EXPECT_LT(own.bytes(), all / kUnitRanks + 4096);
      const NamedTensors root = optimizer.parameters_on_root();
      EXPECT_EQ(root.size(), comm.rank() == 0 ? net->parameters().size() : 0);
      const auto expected = values->named_parameters();
      for (const auto& [name, tensor] : root) EXPECT_TRUE(tensor.equal(expected[name])) << name;
      // Other values, which each rank reads its parts of.
      const torch::NoGradGuard no_grad;
      Safetensors stored;
      for (const auto& [name, tensor] : named(values))
        stored.tensors.emplace_back(name, tensor + 1);
      optimizer.load_parameters(SlicedTensors(stored), "a test");
      stored.tensors.pop_back();
      EXPECT_THROW(optimizer.load_parameters(SlicedTensors(stored), "a test"), CheckpointError);
      EXPECT_LT(peak(), all * 8 / 10) << "saved and loaded, of " << all;
      const auto held = optimizer.whole_parameters();
      for (const auto& [name, tensor] : named(net))
        EXPECT_TRUE(tensor.cpu().equal(expected[name] + 1)) << name;
    });
  }
}

// Two layers, of which a rank may have use for one, and none.
class HalvesImpl : public torch::nn::Module, public Hookable<at::Tensor(const at::Tensor&, bool)> {
 public:
  HalvesImpl() {
    first_ = register_module("first", torch::nn::Linear(kUnitWidth, kUnitWidth));
    second_ = register_module("second", torch::nn::Linear(kUnitWidth, kUnitWidth));
  }

 protected:
  at::Tensor compute(const at::Tensor& x, bool both) override {
    const at::Tensor y = x + torch::tanh(first_(x));
    return both ? y + torch::tanh(second_(y)) : y;
  }

 private:
  torch::nn::Linear first_{nullptr}, second_{nullptr};
};
TORCH_MODULE(Halves);

class HalvesNetImpl : public torch::nn::Module {
 public:
  explicit HalvesNetImpl(int layers) {
    enter_ = register_module("enter", torch::nn::Linear(7, kUnitWidth));
    list_ = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < layers; ++i) list_->push_back(Halves());
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    int index = 0;
    for (at::Tensor& p : parameters())
      p.copy_(torch::arange(p.numel(), torch::kDouble)
                  .mul(0.7)
                  .add(index++)
                  .sin()
                  .mul(0.1)
                  .view(p.sizes()));
  }
  // The loss of a rank does not depend on every third layer, from that of its number on, nor on the second halves of
  // those that follow them.
  at::Tensor forward(const at::Tensor& x, int rank) {
    at::Tensor h = enter_(x);
    for (size_t i = 0; i < list_->size(); ++i) {
      const int turn = static_cast<int>(i) % kUnitRanks;
      const at::Tensor y = list_->ptr<HalvesImpl>(i)->forward(h, turn != (rank + 1) % kUnitRanks);
      if (turn != rank) h = y;
    }
    return h.square().mean();
  }

 private:
  torch::nn::Linear enter_{nullptr};
  torch::nn::ModuleList list_{nullptr};
};
TORCH_MODULE(HalvesNet);

// Writes down what is given to an engine.
class WrittenDown final : public Backend {
 public:
  WrittenDown(std::unique_ptr<Backend> engine, std::string group, std::vector<std::string>& calls)
      : engine_(std::move(engine)), group_(std::move(group)), calls_(calls) {}
  const Capabilities& capabilities() const override { return engine_->capabilities(); }
  DeviceOrder* device_order() override { return engine_->device_order(); }
  std::unique_ptr<Request> start(const Call& call) override {
    calls_.push_back(group_ + ": " + describe(call));
    return engine_->start(call);
  }
  void progress() override { engine_->progress(); }
  bool lost(int rank) const override { return engine_->lost(rank); }
  void abort(const Breakage& why) noexcept override { engine_->abort(why); }
  void interrupt(const Breakage& why) noexcept override { engine_->interrupt(why); }
  bool close() noexcept override { return engine_->close(); }

 private:
  std::unique_ptr<Backend> engine_;
  std::string group_;
  std::vector<std::string>& calls_;
};

// A fetch that waits on one rank for a reduction which on another waits for the fetch would be forever.
TEST_F(UnitsOnFakeCuda, RanksThatLeaveOutDifferentLayersGoInOneOrder) {
  for (const bool keep : {false, true}) {
    HalvesNet one(kUnitLayers);
    optim::FusedAdamW reference(one->parameters(), torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < kUnitSteps; ++step) {
      reference.zero_grad();
      for (int rank = 0; rank < kUnitRanks; ++rank)
        (one->forward(batch_of(rank, step).to(torch::kDouble), rank) / kUnitRanks).backward();
      reference.step();
    }
    std::vector<std::vector<std::string>> calls(kUnitRanks);
    run_on_nccl(
        kUnitRanks,
        [&](Communicator& comm) {
          HalvesNet net(kUnitLayers);
          net->to(comm.device());
          ZeroOptimizer optimizer(comm, to_named_tensors(net->named_parameters()),
                                  torch::optim::AdamWOptions(0.01),
                                  {.stage = 3,
                                   .accumulate = true,
                                   .bucket_sizes = {.first = 1, .rest = 1},
                                   .units = {.model = net.ptr(), .reshard_after_forward = !keep}});
          for (int step = 0; step < kUnitSteps; ++step) {
            const at::Tensor x = batch_of(comm.rank(), step).to(comm.device(), torch::kDouble);
            const Counting counted;
            net->forward(x, comm.rank()).backward();
            optimizer.step();
            if (step + 1 == kUnitSteps) {
              EXPECT_EQ(counted.stops(), 0);
            }
          }
          const auto held = optimizer.whole_parameters();
          const std::vector<at::Tensor> expected = one->parameters();
          const std::vector<at::Tensor> found = net->parameters();
          for (size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(found[i].cpu().allclose(expected[i], 0, 1e-10)) << i;
        },
        std::chrono::seconds(60), /*alone=*/false,
        [&](int rank) {
          return [&of = calls[static_cast<size_t>(rank)]](const std::string& group,
                                                          std::unique_ptr<Backend> engine) {
            return std::make_unique<WrittenDown>(std::move(engine), group, of);
          };
        });
    EXPECT_GT(calls[0].size(), size_t{2 * kUnitSteps * kUnitLayers});
    for (int rank = 1; rank < kUnitRanks; ++rank)
      EXPECT_EQ(calls[static_cast<size_t>(rank)], calls[0]) << "rank " << rank;
    // Gradients do not wait for the end of their backward.
    int reduced_between = 0;
    for (size_t i = 1; i < calls[0].size(); ++i)
      reduced_between += calls[0][i].find("all_gather") != std::string::npos &&
                         calls[0][i - 1].find("reduce_scatter") != std::string::npos;
    EXPECT_GE(reduced_between, keep ? 0 : kUnitSteps * (kUnitLayers - 2));
  }
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

TEST_F(UnitsOnFakeCuda, CopiesAreOfUnitsAndOfOneSize) {
  run_on_nccl(2, [](Communicator& comm) {
    LayerNet net(2, kUnitWidth, at::kFloat);
    const auto refuses = [&](const ZeroOptions& options) {
      EXPECT_THROW(ZeroOptimizer(comm, named(net), torch::optim::AdamWOptions(0.01), options),
                   InvalidArgument);
    };
    refuses({.stage = 3, .copies = {0, 1}});
    refuses({.stage = 3, .units = {.model = net.ptr()}, .copies = {0}});
    refuses({.stage = 3, .units = {.model = net.ptr()}, .copies = {0, 1, 1}});
  });
}

}  // namespace
}  // namespace lockstep::inline v0::testing
