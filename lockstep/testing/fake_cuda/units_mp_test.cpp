// Units on devices that processes share: copies that ranks divide, and layers of a model that a mesh divides.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/parallel/zero/layer_net.h"
#include "lockstep/parallel/zero/zero_optimizer.h"
#include "lockstep/products/parallel_lm.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/gtest_ranks.h"

namespace lockstep::inline v0::testing {
namespace {

std::vector<at::Tensor> train_in_copies(Communicator& comm, const std::string& folder) {
  constexpr int kSteps = 4;
  const bool on_devices = !comm.device().is_cpu();
  zero_test::LayerNet net(5, 64, at::kDouble);
  ZeroOptions options{.stage = 3, .accumulate = true, .units = {.model = net.ptr()}};
  if (on_devices) options.copies = {0, 0, 1, 1};
  const NamedTensors named = to_named_tensors(net->named_parameters());
  ZeroOptimizer optimizer(comm, named, torch::optim::AdamWOptions(0.01), options);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor x =
        torch::arange(28, at::kDouble).add(17 * comm.rank() + 3 * step).sin().view({4, 7});
    const at::Tensor there = x.to(comm.device());
    const Counting counted;
    net->forward(there).square().mean().backward();
    optimizer.step();
    if (on_devices && step + 1 == kSteps) {
      EXPECT_EQ(counted.stops(), 0);
    }
  }
  if (on_devices) {
    double layers = 0;
    for (const auto& [name, p] : named)
      if (name.starts_with("layers.")) layers += static_cast<double>(p.nbytes());
    const ZeroMemory memory = optimizer.memory();
    EXPECT_EQ(memory, optimizer.planned_memory());
    EXPECT_NEAR(static_cast<double>(memory.parameters), layers / 2, 0.1 * layers);
    EXPECT_NEAR(static_cast<double>(memory.state), 2 * layers / 4, 0.1 * layers);
  }
  // What ranks write together is everything, and comes back.
  Checkpoint share;
  share.model_slices = optimizer.own_parameters();
  const std::string path = folder + (on_devices ? "/devices" : "/host");
  write_checkpoint(comm, path, share);
  {
    const auto held = optimizer.whole_parameters();
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : net->parameters()) p.zero_();
  }
  optimizer.load_parameters(
      read_checkpoint(path, CheckpointParts::kModelAndConfig, ModelForm::kSlices).model_slices,
      path);
  const auto held = optimizer.whole_parameters();
  std::vector<at::Tensor> values;
  for (const at::Tensor& p : net->parameters()) values.push_back(p.detach().cpu().clone());
  return values;
}

// Hybrid sharding: two copies, each divided between two of four ranks, which share two devices.
TEST(HybridProcesses, RanksOfACopyDivideIt) {
  if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  for (const char* engine : {"shm", "peer"}) {
    expect_lone_ranks(4, [&] {
      FakeCuda& cuda = FakeCuda::install({.devices = 2});
      {
        Communicator comm = init({.backend = engine, .device = "cuda"});
        Communicator on_host = init({.backend = "shm", .device = "cpu"});
        const TestDirectory own;  // each rank is a program of its own
        const auto folder = broadcast_object(on_host, own.path().string(), 0).get<std::string>();
        const auto expected = train_in_copies(on_host, folder);
        const auto values = train_in_copies(comm, folder);
        for (size_t i = 0; i < values.size(); ++i)
          EXPECT_TRUE(values[i].allclose(expected[i], 1e-9, 1e-10)) << engine << ", " << i;
        on_host.barrier();
      }
      for (const Race& race : cuda.take_races()) ADD_FAILURE() << race.text();
    });
  }
}

// Loss and parameters, of rank 0, after steps of a language model that a mesh divides, its layers once more among the ranks
// that average gradients.
std::vector<at::Tensor> train_divided(Communicator& comm, const std::string& mesh) {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  Parallelism how = parse_parallelism(mesh);
  how.zero = 3;
  how.micro_batches = 4;
  ParallelLm model(config, comm, how,
                   {.values = [](const std::string& name, int64_t begin, const at::Tensor& part) {
                     const at::Tensor at = torch::arange(begin, begin + part.numel(), at::kDouble);
                     const at::Tensor values = (at * 1.3 + double(name.size())).sin() * 0.1;
                     part.copy_(name.find("norm") != std::string::npos ? values + 1 : values);
                   }});
  model.make_optimizer(torch::optim::AdamWOptions(1e-2));
  std::vector<at::Tensor> result;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor ids =
        ((torch::arange(4 * 8, at::kLong) + step) * 7).pow(2).remainder(50).view({4, 8});
    const at::Tensor loss = model.step_unread({ids, ids.roll(-1, 1)});
    model.update({.max_norm = 0.5});
    result.push_back(loss.to(at::kCPU, at::kDouble).reshape({1}));
  }
  if (!comm.device().is_cpu()) {
    int64_t all = 0;
    for (const DividedParameter& part : model.parameters())
      all += static_cast<int64_t>(part.tensor.nbytes());
    EXPECT_LT(model.divided().memory().parameters, all);
  }
  for (const auto& [name, tensor] : model.gather())
    result.push_back(tensor.detach().to(at::kCPU, at::kDouble).flatten());
  return result;
}

TEST(MeshProcesses, DivideLayersOfAMesh) {
  if (!FakeCuda::possible()) GTEST_SKIP() << "this is a CUDA build of libtorch";
  expect_lone_ranks(4, [&] {
    FakeCuda& cuda = FakeCuda::install({.devices = 2});
    {
      Communicator comm = init({.backend = "shm", .device = "cuda"});
      Communicator on_host = init({.backend = "shm", .device = "cpu"});
      for (const char* mesh : {"pipe=2,context=2", "tensor=2,context=2", "pipe=2,data=2"}) {
        const auto expected = train_divided(on_host, mesh);
        const auto values = train_divided(comm, mesh);
        ASSERT_EQ(values.size(), expected.size());
        for (size_t i = 0; i < values.size(); ++i)
          EXPECT_TRUE(values[i].allclose(expected[i], 1e-3, 2e-4)) << mesh << ", " << i;
      }
    }
    for (const Race& race : cuda.take_races()) ADD_FAILURE() << race.text();
  });
}

}  // namespace
}  // namespace lockstep::inline v0::testing
