// Trainer under fsdp on devices that the host plays: none ever has the whole model, and checkpoints go from devices to the
// CPU and back.
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/mutex.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/zero/layer_net.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/class_loss_test.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/trainer.h"

namespace lockstep::inline v0::testing {
namespace {

using zero_test::LayerNet;

constexpr int kTrainedLayers = 16;
constexpr int64_t kTrainedWidth = 96;

struct Ripples {
  at::Tensor input = at::linspace(-1, 1, 24 * 7, at::kDouble).view({24, 7}).mul(9).sin();
  at::Tensor target = input.sum(1).mul(3).floor().remainder(5).to(at::kLong);
  int64_t size() const { return input.size(0); }
  data::Batch batch(std::span<const int64_t> indices) const {
    const at::Tensor rows =
        at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
    return {input.index_select(0, rows), target.index_select(0, rows)};
  }
};

using RippleTrainer = Trainer<LayerNet, Ripples, ClassLoss>;

// How much more a device has while the last checkpoint is written than before it.
struct PeakOfTheLastSave : TrainCallback {
  explicit PeakOfTheLastSave(at::Device on) : device(on) {}
  void on_save(TrainerState&, bool) override {
    device::reset_peak_memory(device);
    before = device::memory_use(device)->in_use;
  }
  void on_end(const TrainerState&) override { more = device::memory_use(device)->peak - before; }
  at::Device device;
  int64_t before = 0, more = 0;
};

struct FsdpRun {
  std::string folder, resume = {}, strategy = "fsdp", model = {};  // where the model is saved
  bool undrawn = false;
  bool idle = false;  // there is nothing left to train
};

struct FsdpOutcome {
  std::vector<at::Tensor> parameters;
  double eval_loss = 0;
};

class FsdpOnFakeCuda : public WithoutRaces {
 protected:
  // Of rank 0. 12 samples a step, whatever the number of ranks.
  FsdpOutcome train(const std::function<void(const std::function<void(Communicator&)>&)>& on_ranks,
                    const FsdpRun& run) {
    FsdpOutcome outcome;
    Mutex mutex;
    on_ranks([&](Communicator& comm) {
      at::set_num_threads(1);
      const bool on_device = !comm.device().is_cpu();
      if (on_device) device::reset_peak_memory(comm.device());
      const int64_t before = on_device ? device::memory_use(comm.device())->in_use : 0;
      const auto peak = [&] { return device::memory_use(comm.device())->peak - before; };
      const Ripples ripples;
      const auto strategy = make_strategy(run.strategy);
      LayerNet net(kTrainedLayers, kTrainedWidth);
      int64_t all = 0;
      for (const at::Tensor& p : net->parameters()) all += static_cast<int64_t>(p.nbytes());
      Strategy::Initial initial;
      if (run.undrawn) {
        const LayerNet drawn(kTrainedLayers, kTrainedWidth);
        std::map<std::string, at::Tensor> values;
        for (const auto& item : drawn->named_parameters())
          values[item.key()] = item.value().detach().flatten();
        initial = [values](const std::string& name, int64_t begin, const at::Tensor& part) {
          part.copy_(values.at(name).narrow(0, begin, part.numel()));
        };
        const at::NoGradGuard no_grad;
        for (at::Tensor& p : net->parameters()) p.fill_(comm.rank() + 7);
      }
      const auto saves = std::make_shared<PeakOfTheLastSave>(comm.device());
      std::vector<std::shared_ptr<TrainCallback>> callbacks;
      if (on_device) callbacks.push_back(saves);
      RippleTrainer trainer({.model = net,
                             .comm = comm,
                             .args = {.output_dir = run.folder,
                                      .per_device_train_batch_size = 12 / comm.size(),
                                      .per_device_eval_batch_size = 5,
                                      .num_train_epochs = 4,
                                      .learning_rate = 0.01,
                                      .logging_steps = 3,
                                      .eval_strategy = "epoch",
                                      .save_strategy = "epoch",
                                      .disable_tqdm = true,
                                      .resume_from_checkpoint = run.resume},
                             .train_dataset = &ripples,
                             .eval_dataset = &ripples,
                             .callbacks = callbacks,
                             .strategy = strategy,
                             .initial = std::move(initial)});
      // A third of the parameters, as much of gradients, what they pass through, and a layer.
      if (on_device) {
        EXPECT_LT(peak(), 2 * all / comm.size() + all * 35 / 100) << "made, of " << all;
      }
      trainer.train();
      const int64_t trained = on_device ? device::memory_use(comm.device())->in_use : 0;
      if (on_device) {
        // With the moments, as of a step without activations.
        if (run.idle) {
          EXPECT_LT(peak(), 4 * all / comm.size() + all * 35 / 100) << "loaded, of " << all;
        } else {
          EXPECT_GT(saves->before, 0);
          EXPECT_LT(saves->more, all / 4) << "saving, of " << all;
        }
        device::reset_peak_memory(comm.device());
      }
      FsdpOutcome own;
      for (const auto& [name, value] : trainer.evaluate())
        if (name == "eval_loss") own.eval_loss = value;
      if (!run.model.empty()) trainer.save_model(run.model);
      // Two layers.
      if (on_device) {
        EXPECT_LT(device::memory_use(comm.device())->peak - trained, all / 4) << "of " << all;
      }
      const auto whole = strategy->placement().whole_parameters();
      for (const at::Tensor& p : net->parameters()) {
        EXPECT_EQ(p.device(), comm.device());
        own.parameters.push_back(p.detach().cpu().clone());
      }
      const MutexLock lock(mutex);
      if (comm.rank() == 0) outcome = std::move(own);
    });
    return outcome;
  }

  static void over_devices(const std::function<void(Communicator&)>& fn) { run_on_nccl(3, fn); }
  static void over_two_devices(const std::function<void(Communicator&)>& fn) { run_on_nccl(2, fn); }
  static void over_cpu(const std::function<void(Communicator&)>& fn) { run_threads(2, fn); }

  std::string in(const std::string& name) const { return (folder_ / name).string(); }
  TestDirectory folder_;
};

void expect_equal(const FsdpOutcome& ours, const FsdpOutcome& theirs, const char* what) {
  ASSERT_EQ(ours.parameters.size(), theirs.parameters.size()) << what;
  for (size_t i = 0; i < ours.parameters.size(); ++i)
    EXPECT_TRUE(ours.parameters[i].allclose(theirs.parameters[i], 1e-7, 1e-9)) << what << ", " << i;
  EXPECT_NEAR(ours.eval_loss, theirs.eval_loss, 1e-8) << what;
}

TEST_F(FsdpOnFakeCuda, NoDeviceHasTheWholeModel) {
  const FsdpOutcome cpu = train(over_cpu, {.folder = in("cpu"), .strategy = "ddp"});
  expect_equal(train(over_devices, {.folder = in("cuda"), .model = in("model")}), cpu, "devices");
  expect_equal(train(over_devices, {.folder = in("undrawn"), .undrawn = true}), cpu, "undrawn");
  // What is saved for others is whole.
  const Checkpoint saved = read_checkpoint(in("model"), CheckpointParts::kModelAndConfig);
  const LayerNet net(kTrainedLayers, kTrainedWidth);
  size_t i = 0;
  for (const auto& item : net->named_parameters())
    EXPECT_TRUE(saved.model.find(item.key())->allclose(cpu.parameters[i++], 1e-7, 1e-9))
        << item.key();
  EXPECT_TRUE(std::filesystem::exists(in("model") + "/model.safetensors"));
}

TEST_F(FsdpOnFakeCuda, CheckpointsGoFromDevicesToTheCpuAndBack) {
  const FsdpOutcome whole = train(over_devices, {.folder = in("cuda")});
  const std::string halfway = in("cuda") + "/checkpoint-4";
  EXPECT_TRUE(std::filesystem::exists(halfway + "/model.slices.json"));
  const auto expect = [&](const auto& on_ranks, const FsdpRun& run, const char* what) {
    expect_equal(train(on_ranks, run), whole, what);
  };
  expect(over_devices, {.folder = in("a"), .resume = halfway}, "devices");
  expect(over_devices, {.folder = in("f"), .resume = in("a") + "/checkpoint-8", .idle = true},
         "loaded");
  expect(over_two_devices, {.folder = in("b"), .resume = halfway}, "two devices");
  expect(over_cpu, {.folder = in("c"), .resume = halfway, .strategy = "ddp"}, "cpu");
  expect(over_cpu, {.folder = in("d"), .resume = halfway}, "cpu, fsdp");
  expect(over_devices, {.folder = in("e"), .resume = in("c") + "/checkpoint-6"}, "from the cpu");
}

}  // namespace
}  // namespace lockstep::inline v0::testing
