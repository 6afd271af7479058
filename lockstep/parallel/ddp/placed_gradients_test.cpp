// Gradients are allocated in their buckets: nothing is copied if steps are alike, and memory that
// other code keeps is not touched if they are not.
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <vector>

#include "lockstep/model/bert.h"
#include "lockstep/model/resnet.h"
#include "lockstep/model/simple_cnn.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::placed_gradients_test {
namespace {

using torch::nn::Linear;

template <typename M>
void clear(M& model) {
  for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
}

// The bytes that the steps after the first one copied; `step` runs forward and backward.
int64_t copied_later(const std::function<ReducerTimes()>& times, const std::function<void()>& step,
                     int steps = 4) {
  step();
  const int64_t first = times().copied_bytes;
  EXPECT_GT(first, 0);
  for (int i = 1; i < steps; ++i) step();
  return times().copied_bytes - first;
}

template <typename M>
void expect_nothing_copied_later(DistributedDataParallel<M>& ddp,
                                 const std::function<at::Tensor()>& loss) {
  EXPECT_EQ(copied_later([&] { return ddp.times(); },
                         [&] {
                           clear(ddp);
                           loss().backward();
                         }),
            0);
}

TEST(PlacedGradients, NothingIsCopiedOfSimpleCnn) {
  torch::manual_seed(1);
  testing::run_threads(2, [](Communicator& comm) {
    SimpleCnn model;
    DistributedDataParallel ddp(model, comm);
    const at::Tensor input = torch::ones({4, 1, 28, 28}), labels = torch::zeros({4}, torch::kLong);
    expect_nothing_copied_later(ddp, [&] { return torch::nll_loss(ddp(input), labels); });
  });
}

TEST(PlacedGradients, NothingIsCopiedOfResNets) {
  torch::manual_seed(1);
  testing::run_threads(2, [](Communicator& comm) {
    for (const auto stem : {ResNetStem::kImageNet, ResNetStem::kCifar}) {
      ResNet model(ResNetOptions{.stem = stem, .num_classes = 10});
      DistributedDataParallel ddp(model, comm);
      const at::Tensor input = torch::ones({2, 3, 32, 32}),
                       labels = torch::zeros({2}, torch::kLong);
      expect_nothing_copied_later(
          ddp, [&] { return torch::nn::functional::cross_entropy(ddp(input), labels); });
    }
  });
}

TEST(PlacedGradients, NothingIsCopiedOfLinearLayersNorWhileAccumulating) {
  torch::manual_seed(1);
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Sequential model(Linear(50, 50), Linear(50, 50), Linear(50, 3));
    DistributedDataParallel ddp(model, comm);
    ddp.accumulate(2);
    const at::Tensor input = torch::ones({8, 50});
    EXPECT_EQ(copied_later([&] { return ddp.times(); },
                           [&] {
                             clear(ddp);
                             for (int i = 0; i < 2; ++i) ddp(input).sum().backward();
                           }),
              0);
  });
}

// Layers of equal size, each with a bucket of its own. Their gradients are views whose base
// autograd keeps.
TEST(PlacedGradients, NothingIsCopiedOfEqualLinearLayers) {
  torch::manual_seed(1);
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Sequential model(Linear(50, 50), Linear(50, 50), Linear(50, 50));
    DistributedDataParallel ddp(model, comm, {.bucket_sizes = {.first = 8192, .rest = 8192}});
    const at::Tensor input = torch::ones({8, 50});
    expect_nothing_copied_later(ddp, [&] { return torch::mse_loss(ddp(input), input); });
  });
}

// The base of a gradient that is kept keeps its values.
TEST(PlacedGradients, ABaseThatAHookKeepsIsLeftAlone) {
  torch::manual_seed(1);
  testing::run_threads(2, [](Communicator& comm) {
    at::Tensor weight = torch::ones({6, 6}).set_requires_grad(true);
    struct Transposed : torch::nn::Module {
      explicit Transposed(const at::Tensor& w) { weight = register_parameter("weight", w); }
      at::Tensor forward(const at::Tensor& x, std::vector<at::Tensor>& kept) {
        const at::Tensor turned = weight.t();
        turned.register_hook([&kept](const at::Tensor& gradient) { kept.push_back(gradient); });
        return x.mm(turned);
      }
      at::Tensor weight;
    };
    DistributedDataParallel ddp(std::make_shared<Transposed>(weight), comm);
    std::vector<at::Tensor> kept;
    for (int step = 0; step < 4; ++step) {
      weight.mutable_grad().reset();
      const at::Tensor input = torch::full({2, 6}, static_cast<double>(comm.rank() + step + 1));
      ddp(input, kept).sum().backward();
      EXPECT_TRUE(at::equal(kept.back(), torch::full({6, 6}, 2.0 * (comm.rank() + step + 1))));
      EXPECT_TRUE(at::equal(weight.grad(), torch::full({6, 6}, 2.0 * (0.5 + step + 1))));
    }
    for (size_t i = 0; i < kept.size(); ++i)
      EXPECT_TRUE(at::equal(kept[i], torch::full({6, 6}, 2.0 * (comm.rank() + i + 1)))) << i;
  });
}

// Gradients have their parameters' layout.
TEST(PlacedGradients, NothingIsCopiedWithChannelsLast) {
  torch::manual_seed(1);
  testing::run_threads(2, [](Communicator& comm) {
    torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)),
                                torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 3)));
    for (at::Tensor& parameter : model->parameters()) {
      if (parameter.dim() == 4)
        parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
    DistributedDataParallel ddp(model, comm);
    const at::Tensor input = torch::ones({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
    expect_nothing_copied_later(ddp, [&] { return ddp(input).sum(); });
  });
}

// Two layers of one size, used in a changing order, compared with averaging by hand.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    a = register_module("a", Linear(12, 12));
    b = register_module("b", Linear(12, 12));
    c = register_module("c", Linear(12, 12));
  }
  at::Tensor forward(at::Tensor x, int64_t way) {
    const at::Tensor first = a->forward(x);
    switch (way % 4) {
      case 0:
        return c->forward(b->forward(first).tanh());
      case 1:
        return b->forward(c->forward(first).tanh());
      case 2:
        return c->forward(c->forward(first).tanh()) * b->forward(first);
      default:
        return c->forward(first.tanh());
    }
  }
  Linear a{nullptr}, b{nullptr}, c{nullptr};
};
TORCH_MODULE(Branches);

std::vector<at::Tensor> averaged_by_hand(Branches& model, int ranks, int64_t way, int64_t numel) {
  std::vector<at::Tensor> sums;
  for (int rank = 0; rank < ranks; ++rank) {
    clear(model);
    model->forward(torch::full({numel, 12}, 0.125 * (rank + 1)), way).sum().backward();
    const auto parameters = model->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = parameters[i].grad().defined() ? parameters[i].grad().clone()
                                                                 : torch::zeros_like(parameters[i]);
      if (rank == 0)
        sums.push_back(gradient);
      else
        sums[i].add_(gradient);
    }
  }
  for (at::Tensor& sum : sums) sum.div_(ranks);
  return sums;
}

TEST(PlacedGradients, AGraphThatChangesFromStepToStepGivesTheSameGradients) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::manual_seed(1);
    Branches model, reference;
    DistributedDataParallel ddp(model, comm);
    for (size_t i = 0; i < model->parameters().size(); ++i)
      reference->parameters()[i].set_data(model->parameters()[i].detach().clone());
    for (int64_t step = 0; step < 16; ++step) {
      const int64_t way = (step * step) / 3;
      // Twelve rows: activations and their gradients have the weights' size.
      const auto expected = averaged_by_hand(reference, comm.size(), way, 12);
      clear(ddp);
      ddp(torch::full({12, 12}, 0.125 * (comm.rank() + 1)), way).sum().backward();
      const auto parameters = model->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor gradient = parameters[i].grad();
        if (!gradient.defined()) {
          EXPECT_EQ(expected[i].abs().max().item<float>(), 0) << "step " << step;
          continue;
        }
        EXPECT_TRUE(at::equal(gradient, expected[i])) << "step " << step << ", parameter " << i;
      }
    }
  });
}

// A kept tensor that autograd gave a hook holds this rank's gradient, not the average, in this step
// and in later ones.
TEST(PlacedGradients, GradientsThatAHookKeepsStayAsTheyWere) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::manual_seed(1);
    torch::nn::Sequential model(Linear(6, 6), Linear(6, 6));
    DistributedDataParallel ddp(model, comm);
    std::vector<at::Tensor> kept, copies;
    const auto step = [&] {
      clear(ddp);
      ddp(torch::full({6, 6}, static_cast<double>(comm.rank() + 1))).sum().backward();
    };
    for (int i = 0; i < 3; ++i) step();
    for (const at::Tensor& parameter : model->parameters()) {
      parameter.register_hook([&](const at::Tensor& gradient) {
        kept.push_back(gradient);
        kept.push_back(gradient.detach());
        copies.push_back(gradient.clone());
        copies.push_back(copies.back());
      });
    }
    for (int i = 0; i < 5; ++i) step();
    ASSERT_EQ(kept.size(), 5u * 4 * 2);
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], copies[i])) << i;
    // The averages are right, too: each rank's gradient is linear in rank + 1.
    const at::Tensor own = copies[copies.size() - 2], average = model->parameters()[0].grad();
    EXPECT_EQ(average.numel(), 36);
    for (const at::Tensor& parameter : model->parameters()) {
      std::vector<at::Tensor> all = comm.all_gather(parameter.grad().unsqueeze(0)).unbind(0);
      EXPECT_TRUE(at::equal(all[0], all[1]));
    }
  });
}

// A gradient of an activation with a weight's size, kept over steps: it may have been given the
// weight's place, and must keep it.
TEST(PlacedGradients, OtherTensorsThatGotAPlaceKeepTheirValues) {
  testing::run_threads(2, [](Communicator& comm) {
    torch::manual_seed(1);
    Branches model;
    DistributedDataParallel ddp(model, comm);
    std::vector<at::Tensor> kept, copies;
    for (int64_t step = 0; step < 12; ++step) {
      clear(ddp);
      const at::Tensor input =
          torch::full({12, 12}, 0.5 * (comm.rank() + 1)).set_requires_grad(true);
      ddp(input, step).sum().backward();
      kept.push_back(input.grad());
      copies.push_back(input.grad().clone());
    }
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], copies[i])) << i;
  });
}

}  // namespace
}  // namespace lockstep::inline v0::placed_gradients_test
