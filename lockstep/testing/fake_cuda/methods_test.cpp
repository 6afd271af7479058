// Other ways of training on devices that the host plays: several devices in one process, layers
// computed again, statistics and stages over nccl. The plain model's numbers, and no races.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/activations/checkpoint.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/mutex.h"
#include "lockstep/parallel/data_parallel/data_parallel.h"
#include "lockstep/parallel/ddp/sync_batch_norm.h"
#include "lockstep/parallel/horovod/adasum.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"
#include "lockstep/testing/fake_cuda/staged_ranks_test.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::testing {
namespace {

class MethodsOnFakeCuda : public WithoutRaces {};

struct TwoLayersImpl : torch::nn::Cloneable<TwoLayersImpl> {
  TwoLayersImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 4));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : parameters())
      p.copy_(torch::linspace(-0.5, 0.5, p.numel()).view(p.sizes()));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoLayers);

at::Tensor rows_of(int64_t count) {
  return torch::arange(count * 6).to(torch::kFloat).remainder(11).div(7).view({count, 6});
}

at::Tensor flat_parameters(torch::nn::Module& module) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& p : module.parameters()) flat.push_back(p.detach().flatten().cpu());
  return torch::cat(flat);
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.cpu() - b.cpu()).abs().max().item<double>();
}

TEST_F(MethodsOnFakeCuda, DataParallelOverTwoDevices) {
  const auto train = [&machine = cuda](const std::vector<at::Device>& devices) {
    TwoLayers net;
    net->to(devices[0]);
    DataParallel model(net, {.devices = devices});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor rows = rows_of(8).add(step).to(devices[0]);
      const FakeCudaCounts before = machine.counts();
      optimizer.zero_grad();
      model(rows).square().mean().backward();
      optimizer.step();
      const FakeCudaCounts step_counts = machine.counts() - before;
      EXPECT_EQ(step_counts.stops(), 0) << step_counts.text();  // of all threads
    }
    return flat_parameters(*net);
  };
  const at::Tensor host = train({at::Device(at::kCPU), at::Device(at::kCPU)});
  EXPECT_LE(distance(train({at::Device(at::kCUDA, 0), at::Device(at::kCUDA, 1)}), host), 1e-6);
}

struct NormedNetImpl : torch::nn::Cloneable<NormedNetImpl> {
  NormedNetImpl() { reset(); }
  void reset() override {
    layers = register_module("layers", TwoLayers());
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(layers(x)); }
  TwoLayers layers{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(NormedNet);

// All devices, the model's first; parts of unequal size, statistics of the first replica, gradients of the input.
TEST_F(MethodsOnFakeCuda, DataParallelTakesAllDevices) {
  const auto train = [](at::Device device) {
    NormedNet net;
    net->to(device);
    DataParallel model(net, {.replicas = 3});
    at::Tensor rows = rows_of(8).to(device).requires_grad_();
    for (int step = 0; step < 2; ++step)
      model(rows).mul(rows_of(8).narrow(1, 0, 4).sin().to(device)).sum().backward();
    return torch::cat({flat_parameters(*net), rows.grad().flatten().cpu(),
                       net->norm->running_mean.cpu(), net->norm->running_var.cpu(),
                       net->layers->first->weight.grad().flatten().cpu()});
  };
  EXPECT_LE(distance(train(at::Device(at::kCUDA, 1)), train(at::kCPU)), 1e-5);
}

TEST_F(MethodsOnFakeCuda, LayersComputedAgainDropTheSame) {
  const auto gradient = [](bool again) {
    torch::manual_seed(9);
    const at::Tensor x = torch::ones({100}, at::kCUDA).requires_grad_();
    const auto layer = [](const at::Tensor& in) { return torch::dropout(in * 2, 0.5, true); };
    const at::Tensor y = again ? checkpoint(layer, x) : layer(x);
    torch::randn({10}, at::kCUDA);  // the generator has gone on when it is computed again
    y.square().sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(torch::equal(gradient(true), gradient(false)));
}

TEST_F(MethodsOnFakeCuda, SyncBatchNormIsThatOfAllRows) {
  const at::Tensor all = rows_of(8).requires_grad_();
  torch::nn::BatchNorm1d plain(6);
  const at::Tensor expected = plain(all);
  expected.mul(rows_of(8).cos()).sum().backward();
  const auto run = [&](Communicator& comm) {
    torch::nn::BatchNorm1d norm(6);
    norm->to(comm.device());
    convert_sync_batch_norm(norm, comm);
    const auto own = [&](const at::Tensor& of) {
      return of.detach().chunk(2)[comm.rank()].to(comm.device());
    };
    const at::Tensor mine = own(all).requires_grad_(), factors = own(rows_of(8).cos());
    norm(mine.detach());  // the first one makes what later ones use
    norm->running_mean.zero_();
    norm->running_var.fill_(1);
    Counting counted;
    const at::Tensor out = norm(mine);
    out.mul(factors).sum().backward();
    EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
    EXPECT_LE(distance(out.detach(), own(expected)), 1e-5);
    EXPECT_LE(distance(mine.grad(), own(all.grad())), 1e-5);
    EXPECT_LE(distance(norm->running_mean, plain->running_mean), 1e-6);
    EXPECT_LE(distance(norm->running_var, plain->running_var), 1e-6);
  };
  run_on_nccl(2, run);
  run_on_staged(2, run);
}

// Messages between stages would never meet: what a stage gives on the host goes another way than what
// its neighbour awaits on a device.
TEST_F(MethodsOnFakeCuda, AStageThatWasLeftOnTheHostIsNamed) {
  run_on_staged(2, [&](Communicator& comm) {
    const bool first = comm.rank() == 0;
    const PipelineRows between{{8}, at::kFloat}, ends{{6}, at::kFloat};
    TwoLayers net;
    Pipeline pipeline(comm, make_schedule("1f1b", {.stages = 2, .micro_batches = 2}),
                      {PipelineChunk{.forward = [&](const at::Tensor& x,
                                                    const MicroBatch&) { return net->first(x); },
                                     .takes = first ? ends : between,
                                     .gives = first ? between : PipelineRows{{4}, at::kFloat}}});
    const PipelineBatch batch{
        .rows = {2, 2},
        .input = [&](const MicroBatch& mb) { return rows_of(4).narrow(0, mb.first_row, mb.rows); },
        .loss = [](const at::Tensor& rows, const MicroBatch&) { return rows.sum(); }};
    const std::string said = first ? message_of<InvalidArgument>([&] { pipeline.step(batch); })
                                   : message_of<PeerLost>([&] { pipeline.step(batch); });
    EXPECT_NE(said.find("chunk 0 gives rows on cpu, and the ranks' device is cuda:0"),
              std::string::npos)
        << said;
  });
}

TEST_F(MethodsOnFakeCuda, AdasumIsThatOfTheHost) {
  const auto add = [](Communicator& comm) {
    std::vector<at::Tensor> vectors;
    for (const int64_t rows : {3, 5})
      vectors.push_back(rows_of(rows).add(comm.rank()).sin().to(comm.device()));
    Counting counted;
    adasum_all_reduce(comm, vectors);
    EXPECT_LE(counted.stops(), 1) << counted.counts().text();  // to the host, where it is computed
    return torch::cat({vectors[0].flatten().cpu(), vectors[1].flatten().cpu()});
  };
  Mutex mutex;
  at::Tensor host;
  run_threads(2, [&](Communicator& comm) {
    const at::Tensor sums = add(comm);
    const MutexLock lock(mutex);
    if (comm.rank() == 0) host = sums;
  });
  const auto run = [&](Communicator& comm) { EXPECT_TRUE(add(comm).equal(host)); };
  run_on_nccl(2, run);
  run_on_staged(2, run);
}

struct DroppingNetImpl : torch::nn::Module {
  DroppingNetImpl() {
    layers = register_module("layers", TwoLayers());
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::dropout(norm(layers(x)), 0.5, is_training());
  }
  TwoLayers layers{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(DroppingNet);

// Masks, sums and statistics belong to the logical ranks, whatever device computes them.
TEST_F(MethodsOnFakeCuda, LogicalRanksEndInTheSameBitsOnAnyNumberOfDevices) {
  const auto train = [](Communicator& comm) {
    DroppingNet net;
    net->to(comm.device());
    LogicalRanks logical(comm, net.ptr(), 4);
    // The streams are drawn from a generator that ranks as threads share.
    std::vector<at::Tensor> states;
    for (uint64_t i = 0; i < 4; ++i)
      states.push_back(at::detail::createCPUGenerator(100 + i).get_state());
    logical.set_random_states(torch::stack(states), "test");
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      std::vector<at::Tensor> batches;
      for (int64_t i = 0; i < logical.own(); ++i)
        batches.push_back(rows_of(4).add(logical.first() + i + step).sin().to(comm.device()));
      Counting counted;
      for (const at::Tensor& batch : batches)
        logical.backward(
            logical.forward([&] { return std::vector<at::Tensor>{net(batch)}; })[0].square().sum());
      logical.synchronize();
      optimizer.step();
      EXPECT_EQ(counted.stops(), 0) << counted.counts().text();
    }
    return torch::cat({flat_parameters(*net), net->norm->running_mean.cpu()});
  };
  Communicator alone = init({.device = "cuda:0"});
  const at::Tensor expected = train(alone);
  const auto run = [&](Communicator& comm) { EXPECT_TRUE(train(comm).equal(expected)); };
  run_on_nccl(2, run);
  run_on_staged(2, run);
}

TEST_F(MethodsOnFakeCuda, PipelineOverNccl) {
  TwoLayers whole;
  whole->forward(rows_of(8)).square().mean().backward();
  for (const char* name : {"gpipe", "1f1b"}) {
    run_on_nccl(2, [&](Communicator& comm) {
      TwoLayers net;
      net->to(comm.device());
      const bool first = comm.rank() == 0;
      const PipelineRows between{{8}, at::kFloat}, ends{{6}, at::kFloat};
      PipelineChunk chunk{.forward =
                              [&](const at::Tensor& x, const MicroBatch&) {
                                return first ? torch::tanh(net->first(x)) : net->second(x);
                              },
                          .takes = first ? ends : between,
                          .gives = first ? between : PipelineRows{{4}, at::kFloat}};
      Pipeline pipeline(comm, make_schedule(name, {.stages = 2, .micro_batches = 4}), {chunk});
      const at::Tensor all = rows_of(8).to(comm.device());
      pipeline.step(
          {.rows = {2, 2, 2, 2},
           .input = [&](const MicroBatch& mb) { return all.narrow(0, mb.first_row, mb.rows); },
           .loss = [](const at::Tensor& rows,
                      const MicroBatch&) { return rows.square().mean() / 4; }});
      const auto layer = [&](TwoLayers& of) { return first ? of->first : of->second; };
      EXPECT_LE(distance(layer(net)->weight.grad(), layer(whole)->weight.grad()), 1e-6) << name;
    });
  }
}

}  // namespace
}  // namespace lockstep::inline v0::testing
