// Other ways of training on devices that the host plays: several devices in one process, layers
// computed again, statistics and stages over nccl. The plain model's numbers, and no races.
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
#include "lockstep/core/mutex.h"
#include "lockstep/parallel/data_parallel/data_parallel.h"
#include "lockstep/parallel/ddp/sync_batch_norm.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/plan/pipeline_schedule.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/nccl_ranks_test.h"

namespace lockstep::testing {
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
  const auto train = [](const std::vector<at::Device>& devices) {
    TwoLayers net;
    net->to(devices[0]);
    DataParallel model(net, {.devices = devices});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model(rows_of(8).add(step).to(devices[0])).square().mean().backward();
      optimizer.step();
    }
    return flat_parameters(*net);
  };
  const at::Tensor host = train({at::Device(at::kCPU), at::Device(at::kCPU)});
  EXPECT_LE(distance(train({at::Device(at::kCUDA, 0), at::Device(at::kCUDA, 1)}), host), 1e-6);
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

TEST_F(MethodsOnFakeCuda, SyncBatchNormOverNccl) {
  const at::Tensor all = rows_of(8);
  torch::nn::BatchNorm1d plain(6);
  const at::Tensor expected = plain(all).detach();
  run_on_nccl(2, [&](Communicator& comm) {
    torch::nn::BatchNorm1d norm(6);
    norm->to(comm.device());
    convert_sync_batch_norm(norm, comm);
    const at::Tensor mine = all.chunk(2)[comm.rank()].to(comm.device()).requires_grad_();
    const at::Tensor out = norm(mine);
    out.square().sum().backward();
    EXPECT_LE(distance(out.detach(), expected.chunk(2)[comm.rank()]), 1e-5);
    EXPECT_LE(distance(norm->running_mean, plain->running_mean), 1e-6);
  });
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
}  // namespace lockstep::testing
