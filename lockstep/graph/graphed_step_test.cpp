// Steps of training as graphs, on a device that the host plays: the same bits as eagerly, one launch a step, no stop
// of the host, no race; and what cannot be captured.
#include "lockstep/graph/graphed_step.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/generator_state.h"
#include "lockstep/device/stream.h"
#include "lockstep/model/bert.h"
#include "lockstep/model/simple_cnn.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/optim/lamb.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::testing {
namespace {

class GraphedSteps : public WithoutRaces {
 protected:
  void SetUp() override {
    WithoutRaces::SetUp();
    if (const std::string why = device::why_no_graphs(kDevice); !why.empty()) GTEST_SKIP() << why;
  }
  static inline const at::Device kDevice{at::kCUDA, 0};
};

constexpr int kSteps = 8;
// Learning rates are float32 in a graph, float64 in the eager kernel's arguments: powers of two are both.
constexpr double kRate = 1.0 / 1024;

using Batch = std::vector<at::Tensor>;
using Loss = std::function<at::Tensor(const Batch&)>;

// What training leaves behind.
struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<double> losses;
  int graphs = 0;
};

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

// A model, the loss of a batch and the batches, the same in every call.
struct Task {
  std::shared_ptr<torch::nn::Module> model;
  Loss loss;
  std::vector<Batch> batches;  // on the host
};
using MakeTask = std::function<Task()>;

Task make_mlp() {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 3));
  Task task{model.ptr(), [model](const Batch& batch) mutable {
              return torch::nn::functional::cross_entropy(model->forward(batch[0]), batch[1]);
            }, {}};
  for (int i = 0; i < kSteps; ++i)
    task.batches.push_back({torch::randn({4, 6}), torch::randint(3, {4})});
  return task;
}

Task make_cnn() {
  torch::manual_seed(4);
  SimpleCnn model;
  Task task{model.ptr(), [model](const Batch& batch) mutable {
              return torch::nn::functional::nll_loss(model->forward(batch[0]), batch[1]);
            }, {}};
  for (int i = 0; i < kSteps; ++i)
    task.batches.push_back({torch::randn({2, 1, 28, 28}), torch::randint(10, {2})});
  return task;
}

// The step of a training loop: clipping, a skipped step where the norm is not finite, AdamW.
template <typename Optimizer>
at::Tensor clipped_step(Optimizer& optimizer, const Loss& loss_of, const Batch& batch) {
  optimizer.zero_grad();
  at::Tensor loss = loss_of(batch);
  loss.backward();
  optimizer.step({.max_norm = 1.0, .on_non_finite = optim::NonFinite::kSkip});
  return loss;
}

Trained train(const MakeTask& make, at::Device device, bool graphed) {
  const Task task = make();
  task.model->to(device);
  optim::FusedAdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(kRate));
  torch::manual_seed(11);
  const auto step = [&](const Batch& batch) { return clipped_step(optimizer, task.loss, batch); };
  GraphedStep replayed({.device = device}, step);
  Trained result;
  for (int i = 0; i < kSteps; ++i) {
    set_rate(optimizer, i < 6 ? kRate : kRate / 2);
    Batch batch;
    for (const at::Tensor& tensor : task.batches[static_cast<size_t>(i)])
      batch.push_back(tensor.to(device));
    Counting counted;
    const at::Tensor loss = graphed ? replayed(batch) : step(batch);
    if (graphed && i > 3) {
      const FakeCudaCounts counts = counted.counts();
      EXPECT_EQ(counts.stops(), 0) << counts.text();
      EXPECT_EQ(counts.replays, 1);
      // The batch, the learning rate with the step's number, and the graph.
      EXPECT_EQ(counts.operations, static_cast<int64_t>(batch.size()) + 2) << counts.text();
      EXPECT_GT(counts.replayed, 10) << counts.text();
    }
    result.losses.push_back(loss.item<double>());
  }
  for (const at::Tensor& p : task.model->parameters())
    result.parameters.push_back(p.detach().cpu());
  result.graphs = replayed.captured();
  return result;
}

void expect_same(const Trained& graphed, const Trained& eager) {
  EXPECT_EQ(graphed.losses, eager.losses);
  ASSERT_EQ(graphed.parameters.size(), eager.parameters.size());
  for (size_t i = 0; i < eager.parameters.size(); ++i)
    EXPECT_TRUE(at::equal(graphed.parameters[i], eager.parameters[i])) << "parameter " << i;
}

void expect_as_eagerly(const MakeTask& make, at::Device device) {
  const Trained eager = train(make, device, false);
  const Trained graphed = train(make, device, true);
  EXPECT_EQ(graphed.graphs, 1);
  expect_same(graphed, eager);
}

TEST_F(GraphedSteps, AnMlpTrainsAsEagerly) {
  expect_as_eagerly(make_mlp, kDevice);
}

TEST_F(GraphedSteps, ACnnWithDropoutTrainsAsEagerly) {
  expect_as_eagerly(make_cnn, kDevice);
}

}  // namespace
}  // namespace lockstep::testing
