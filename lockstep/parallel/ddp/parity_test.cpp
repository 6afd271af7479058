// Whole models, N ranks compared with one process on the whole batch.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <mutex>

#include "lockstep/core/internal/test_support.h"
#include "lockstep/model/resnet.h"
#include "lockstep/model/simple_cnn.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/parallel/ddp/sync_batch_norm.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::parity_test {
namespace {

constexpr int64_t kRows = 6;
// From the third step on the buckets stay the same.
constexpr int kSteps = kSanitized ? 3 : 10;

// Threads share libtorch's generator.
std::mutex drawing;

ResNet make_resnet(at::ScalarType dtype) {
  at::set_num_threads(1);  // ranks with a pool each would wait for each other's
  const std::lock_guard lock(drawing);
  torch::manual_seed(1);
  ResNet net(ResNetOptions{.stem = ResNetStem::kCifar, .num_classes = 10});
  net->to(dtype);
  return net;
}

at::Tensor images(int step, at::ScalarType dtype, int64_t channels, int64_t side) {
  const at::Tensor values =
      torch::arange(kRows * channels * side * side, torch::kDouble).add(step * 31).mul(0.37).sin();
  return values.view({kRows, channels, side, side}).to(dtype);
}

at::Tensor labels(int step) {
  return torch::arange(kRows, torch::kLong).add(step).remainder(10);
}

// Trains; `rows`: the rows of each batch.
template <typename Model, typename Net, typename Loss>
void train(Model& model, Net& net, int64_t begin, int64_t end, const Loss& loss) {
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(5e-4));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss(model, step, begin, end).backward();
    optimizer.step();
  }
}

void expect_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = tolerance * (1 + expected[i].abs().max().item<double>());
    EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), bound) << what << " " << i;
  }
}

// float32 needs larger images: at 8x8 the last layers normalise six values.
const auto kResNetLoss = [](auto& model, int step, int64_t begin, int64_t end) {
  const at::ScalarType dtype = model->parameters()[0].scalar_type();
  return torch::nn::functional::cross_entropy(
      model(images(step, dtype, 3, dtype == torch::kDouble ? 8 : 16).slice(0, begin, end)),
      labels(step).slice(0, begin, end));
};

// With SyncBatchNorm, and unequal batches: two rows and four.
TEST(Parity, ResNetWithSyncBatchNormIsOneProcess) {
  ResNet one = make_resnet(torch::kDouble);
  train(one, one, 0, kRows, kResNetLoss);
  testing::run_threads(2, [&](Communicator& comm) {
    ResNet net = make_resnet(torch::kDouble);
    convert_sync_batch_norm(net, comm);
    DistributedDataParallel model(net, comm, {.divide_by = DivideBy::kSamples});
    train(model, net, comm.rank() == 0 ? 0 : 2, comm.rank() == 0 ? 2 : kRows, kResNetLoss);
    expect_close(net->parameters(), one->parameters(), 1e-8, "parameter");
    std::vector<at::Tensor> got, expected;
    for (const auto& [name, buffer] : to_named_tensors(net->named_buffers()))
      got.push_back(buffer.to(torch::kDouble));
    for (const auto& [name, buffer] : to_named_tensors(one->named_buffers()))
      expected.push_back(buffer.to(torch::kDouble));
    expect_close(got, expected, 1e-8, "buffer");
  });
}

// Of 800,000 inputs of ReLU some lie within float32's rounding of 0, where one process and three
// may differ in whether the gradient passes; on another processor these are different ones. In the
// last layers a single one is a hundredth of some gradient. Gradients are therefore compared as
// vectors here, and element by element in float64, above. A wrong divisor or wrong statistics
// change them by a fifth and more.
TEST(Parity, ResNetsFirstGradientsAreOneProcesssInFloat32) {
  ResNet one = make_resnet(torch::kFloat);
  kResNetLoss(one, 0, 0, kRows).backward();
  std::vector<at::Tensor> expected;
  for (const auto& p : one->parameters()) expected.push_back(p.grad());
  testing::run_threads(3, [&](Communicator& comm) {
    ResNet net = make_resnet(torch::kFloat);
    convert_sync_batch_norm(net, comm);
    DistributedDataParallel model(net, comm);
    const int64_t begin = comm.rank() * 2;
    kResNetLoss(model, 0, begin, begin + 2).backward();
    const std::vector<at::Tensor> parameters = net->parameters();
    ASSERT_EQ(parameters.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const double size = expected[i].norm().item<double>();
      const double apart = (parameters[i].grad() - expected[i]).norm().item<double>();
      EXPECT_LE(apart, 0.1 * size + 1e-4) << "gradient " << i << " of " << size;
    }
  });
}

TEST(Parity, SimpleCnnIsOneProcessWhateverTheOptions) {
  const auto make = [] {
    at::set_num_threads(1);
    const std::lock_guard lock(drawing);
    torch::manual_seed(2);
    SimpleCnn net(SimpleCnnOptions{.dropout1 = 0, .dropout2 = 0});
    net->to(torch::kDouble);
    return net;
  };
  const auto loss = [](auto& model, int step, int64_t begin, int64_t end) {
    return torch::nll_loss(model(images(step, torch::kDouble, 1, 28).slice(0, begin, end)),
                           labels(step).slice(0, begin, end));
  };
  SimpleCnn one = make();
  train(one, one, 0, kRows, loss);
  for (const bool is_static : {false, true}) {
    std::vector<std::vector<at::Tensor>> runs;
    for (int run = 0; run < 2; ++run) {
      testing::run_threads(3, [&](Communicator& comm) {
        SimpleCnn net = make();
        DistributedDataParallel model(
            net, comm, {.bucket_sizes = {.first = 4096, .rest = 65536}, .static_graph = is_static});
        train(model, net, comm.rank() * 2, comm.rank() * 2 + 2, loss);
        expect_close(net->parameters(), one->parameters(), 1e-8, "parameter");
        if (comm.rank() == 1) runs.push_back(net->parameters());
      });
    }
    for (size_t i = 0; i < runs[0].size(); ++i) EXPECT_TRUE(runs[0][i].equal(runs[1][i])) << i;
  }
}

}  // namespace
}  // namespace lockstep::inline v0::parity_test
