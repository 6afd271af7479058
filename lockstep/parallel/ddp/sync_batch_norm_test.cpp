#include "lockstep/parallel/ddp/sync_batch_norm.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <sstream>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::sync_batch_norm_test {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm3d;
using Options = torch::nn::BatchNormOptions;
using Parts = std::vector<int64_t>;

torch::Tensor values(std::vector<int64_t> shape, torch::ScalarType type, double offset = 0) {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  const auto x = torch::arange(count, torch::kDouble);
  return (((x * 37).remainder(101) / 17 + (x * 11).remainder(7) + offset)).view(shape).to(type);
}

// A layer's results on (its part of) the batch.
struct Outcome {
  std::vector<torch::Tensor> outputs, input_grads;  // per step
  torch::Tensor weight_grad, bias_grad;             // summed over the steps
  torch::Tensor running_mean, running_var, batches;
  torch::Tensor evaluated;
};

template <typename Layer>
Outcome run(Layer& layer, const std::vector<torch::Tensor>& inputs,
            const std::vector<torch::Tensor>& factors) {
  Outcome outcome;
  for (size_t step = 0; step < inputs.size(); ++step) {
    const auto x = inputs[step].detach().requires_grad_();
    const auto y = layer(x);
    (y * factors[step]).sum().backward();
    outcome.outputs.push_back(y.detach());
    outcome.input_grads.push_back(x.grad());
  }
  if (layer->weight.defined()) {
    outcome.weight_grad = layer->weight.grad();
    outcome.bias_grad = layer->bias.grad();
  }
  outcome.running_mean = layer->running_mean;
  outcome.running_var = layer->running_var;
  outcome.batches = layer->num_batches_tracked;
  layer->eval();
  outcome.evaluated = layer(inputs[0]).detach();
  return outcome;
}

void expect_close(const torch::Tensor& got, const torch::Tensor& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  ASSERT_EQ(got.dtype(), expected.dtype()) << what;
  if (expected.numel() == 0) return;
  const auto a = got.to(torch::kDouble), b = expected.to(torch::kDouble);
  const double scale = std::max(1.0, b.abs().max().item<double>());
  const double difference = (a - b).abs().max().item<double>();
  EXPECT_LE(difference, tolerance * scale) << what;  // false for NaN
}

// A layer over the ranks' parts equals torch's layer on the whole batch.
template <typename Layer, typename Make>
void expect_whole_batch(const std::vector<int64_t>& shape, const Options& options,
                        torch::ScalarType type, const Parts& parts, double tolerance,
                        const Make& make, torch::MemoryFormat format, double offset = 0) {
  constexpr int kSteps = 3;
  std::vector<int64_t> whole = shape;
  whole[0] = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  std::vector<torch::Tensor> inputs, factors;
  for (int step = 0; step < kSteps; ++step) {
    inputs.push_back(values(whole, type, offset + step).contiguous(format));
    factors.push_back((values(whole, type) * (step + 3)).remainder(5).contiguous(format));
  }
  const auto prepare = [&](auto& layer) {
    layer->to(type);
    const torch::NoGradGuard no_grad;
    if (layer->weight.defined()) {
      layer->weight.copy_(torch::linspace(0.5, 2, shape[1]));
      layer->bias.copy_(torch::linspace(-1, 1, shape[1]));
    }
    if (layer->num_batches_tracked.defined())  // to() above makes it a floating point number
      layer->num_batches_tracked.set_data(torch::tensor(0, torch::kLong));
  };
  Layer one(options);
  prepare(one);
  const Outcome expected = run(one, inputs, factors);

  std::mutex mutex;
  torch::Tensor weight_grad, bias_grad;
  testing::run_threads(static_cast<int>(parts.size()), [&](Communicator& comm) {
    const auto mine = [&](const std::vector<torch::Tensor>& tensors) {
      std::vector<torch::Tensor> result;
      for (const auto& tensor : tensors)
        result.push_back(tensor.split_with_sizes(parts)[comm.rank()]);
      return result;
    };
    auto layer = make(comm);
    prepare(layer);
    const Outcome got = run(layer, mine(inputs), mine(factors));
    const std::lock_guard lock(mutex);
    for (int step = 0; step < kSteps; ++step) {
      expect_close(got.outputs[step], mine(expected.outputs)[step], tolerance, "output");
      expect_close(got.input_grads[step], mine(expected.input_grads)[step], tolerance,
                   "gradient of the input");
    }
    expect_close(got.evaluated, mine({expected.evaluated})[0], tolerance, "evaluation");
    ASSERT_EQ(got.weight_grad.defined(), expected.weight_grad.defined());
    if (got.weight_grad.defined()) {
      weight_grad = weight_grad.defined() ? weight_grad + got.weight_grad : got.weight_grad;
      bias_grad = bias_grad.defined() ? bias_grad + got.bias_grad : got.bias_grad;
    }
    ASSERT_EQ(got.running_var.defined(), expected.running_var.defined());
    if (got.running_var.defined()) {
      expect_close(got.running_mean, expected.running_mean, tolerance, "running mean");
      expect_close(got.running_var, expected.running_var, tolerance, "running variance");
      EXPECT_EQ(got.batches.template item<int64_t>(), kSteps);
    }
  });
  if (weight_grad.defined()) {
    expect_close(weight_grad, expected.weight_grad, tolerance, "gradient of the weight");
    expect_close(bias_grad, expected.bias_grad, tolerance, "gradient of the bias");
  }
}

template <typename Layer>
void expect_converted(const std::vector<int64_t>& shape, const Options& options,
                      torch::ScalarType type, const Parts& parts, double tolerance,
                      torch::MemoryFormat format = torch::MemoryFormat::Contiguous,
                      double offset = 0) {
  SCOPED_TRACE(::testing::Message()
               << at::IntArrayRef(shape) << " " << type << " parts " << at::IntArrayRef(parts));
  const auto make = [&](Communicator& comm) {
    Layer layer(options);
    EXPECT_EQ(convert_sync_batch_norm(layer, comm), 1);
    return layer;
  };
  expect_whole_batch<Layer>(shape, options, type, parts, tolerance, make, format, offset);
}

constexpr double kDoubleTolerance = 1e-10;
constexpr double kFloatTolerance = 2e-5;
const std::vector<Parts> kParts{{4, 4}, {2, 7}, {5, 0, 3}, {0, 6}, {1, 2, 3, 4}};

TEST(SyncBatchNorm, IsBatchNormOfTheWholeBatch) {
  for (const auto& [type, tolerance] :
       {std::pair{torch::kDouble, kDoubleTolerance}, std::pair{torch::kFloat, kFloatTolerance}}) {
    for (const Parts& parts : kParts) {
      expect_converted<BatchNorm1d>({0, 5, 3}, Options(5), type, parts, tolerance);
      expect_converted<BatchNorm2d>({0, 4, 3, 5}, Options(4), type, parts, tolerance);
      expect_converted<BatchNorm2d>({0, 4, 3, 5}, Options(4), type, parts, tolerance,
                                    torch::MemoryFormat::ChannelsLast);
      expect_converted<BatchNorm3d>({0, 3, 2, 3, 2}, Options(3), type, parts, tolerance);
    }
    expect_converted<BatchNorm1d>({0, 6}, Options(6), type, {3, 2, 4}, tolerance);
    expect_converted<BatchNorm1d>({0, 6}, Options(6), type, {3, 0, 4}, tolerance);
  }
}

TEST(SyncBatchNorm, TakesEveryOption) {
  const Parts parts{3, 0, 5};
  const std::vector<int64_t> shape{0, 4, 2, 3};
  const auto expect = [&](const Options& options) {
    expect_converted<BatchNorm2d>(shape, options, torch::kDouble, parts, kDoubleTolerance);
  };
  expect(Options(4).momentum(std::nullopt));
  expect(Options(4).momentum(0.37).eps(0.2));
  expect(Options(4).affine(false));
  expect(Options(4).track_running_stats(false));
  expect(Options(4).affine(false).track_running_stats(false));
}

TEST(SyncBatchNorm, LosesNothingWhereTheMeanIsLarge) {
  // The deviations are millionths of the mean: a difference of squares would leave five digits.
  expect_converted<BatchNorm2d>({0, 3, 4, 4}, Options(3), torch::kDouble, {2, 5}, 1e-8,
                                torch::MemoryFormat::Contiguous, 1e6);
}

TEST(SyncBatchNorm, LayersInSplitMemoryAreLaidOutAsTheyCome) {
  // Neither contiguous nor channels last.
  testing::run_threads(2, [](Communicator& comm) {
    const auto whole = values({6, 4, 5, 3}, torch::kDouble);
    BatchNorm2d one(4), two(4);
    one->to(torch::kDouble);
    two->to(torch::kDouble);
    convert_sync_batch_norm(two, comm);
    const auto a = whole.permute({0, 1, 3, 2}).detach().requires_grad_();
    const auto b = a.detach().chunk(2)[comm.rank()].requires_grad_();
    one(a).pow(3).sum().backward();
    two(b).pow(3).sum().backward();
    expect_close(b.grad(), a.grad().chunk(2)[comm.rank()], kDoubleTolerance, "gradient");
  });
}

TEST(SyncBatchNorm, SixteenBitsUnderAutocastKeepStatisticsInFloat32) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    const auto whole = values({8, 4, 3, 3}, type);
    const auto train = [&](auto& layer, const torch::Tensor& part) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, type);
      const auto x = part.detach().requires_grad_();
      const auto y = layer(x);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      (y * y).sum().backward();
      return std::pair{y.detach(), x.grad()};
    };
    BatchNorm2d one(4);
    const auto expected = train(one, whole);
    testing::run_threads(2, [&](Communicator& comm) {
      BatchNorm2d layer(4);
      convert_sync_batch_norm(layer, comm);
      const auto got = train(layer, whole.chunk(2)[comm.rank()]);
      expect_close(got.first, expected.first.chunk(2)[comm.rank()], 0.01, "output");
      expect_close(got.second, expected.second.chunk(2)[comm.rank()], 0.02, "gradient");
      EXPECT_EQ(layer->running_mean.dtype(), torch::kFloat);
      expect_close(layer->running_mean, one->running_mean, 1e-5, "running mean");
      expect_close(layer->running_var, one->running_var, 1e-5, "running variance");
    });
  }
}

TEST(SyncBatchNorm, TheModuleForNewModelsIsTheSame) {
  for (const Parts& parts : kParts) {
    for (const auto& options : {Options(4), Options(4).momentum(std::nullopt),
                                Options(4).affine(false).track_running_stats(false)}) {
      const auto make = [&](Communicator& comm) { return SyncBatchNorm(options, comm); };
      expect_whole_batch<BatchNorm2d>({0, 4, 3, 2}, options, torch::kDouble, parts,
                                      kDoubleTolerance, make, torch::MemoryFormat::Contiguous);
    }
  }
  // One value per channel on each rank is enough, one in the world is not.
  testing::run_threads(2, [](Communicator& comm) {
    SyncBatchNorm layer(Options(2), comm);
    const auto x = torch::tensor({{1.0F, 2.0F}}) * (comm.rank() + 1);
    const auto expected = torch::tensor({{1.0F, 1.0F}}) * (comm.rank() == 0 ? -1 : 1);
    expect_close(layer(x).detach(), expected, 1e-4, "output");
    EXPECT_THROW(layer(x.narrow(0, 0, comm.rank())), InvalidArgument);
    EXPECT_THROW(layer(torch::zeros({2, 3})), InvalidArgument);
    const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(layer->clone());
    const auto before = comm.stats().collectives;
    copy->forward(x);
    EXPECT_EQ(comm.stats().collectives, before + 1);
  });
}

TEST(SyncBatchNorm, CommunicatesOncePerDirectionAndOnlyInTraining) {
  testing::run_threads(2, [](Communicator& comm) {
    BatchNorm1d layer(3);
    convert_sync_batch_norm(layer, comm);
    uint64_t before = comm.stats().collectives;
    const auto since = [&] {
      const uint64_t now = comm.stats().collectives;
      return now - std::exchange(before, now);
    };
    const auto x = values({4, 3}, torch::kFloat);
    const auto y = layer(x.detach().requires_grad_());
    EXPECT_EQ(since(), 1u);
    y.sum().backward();
    EXPECT_EQ(since(), 1u);
    layer(x).sum().backward();  // the input needs no gradient
    EXPECT_EQ(since(), 1u);
    layer->eval();
    layer(x.detach().requires_grad_()).sum().backward();
    EXPECT_EQ(since(), 0u);
  });
}

TEST(SyncBatchNorm, OneRankComputesPlainBatchNorm) {
  testing::run_threads(1, [](Communicator& comm) {
    BatchNorm2d plain(3), layer(3);
    convert_sync_batch_norm(layer, comm);
    const auto x = values({4, 3, 5, 5}, torch::kFloat);
    EXPECT_TRUE(torch::equal(plain(x), layer(x)));
    EXPECT_TRUE(torch::equal(plain->running_var, layer->running_var));
    EXPECT_EQ(comm.stats().collectives, 0u);
  });
}

TEST(SyncBatchNorm, ARankWithoutDataMayStandInWithZeros) {
  const auto x = values({6, 4}, torch::kDouble);
  BatchNorm1d one(4);
  one->to(torch::kDouble);
  const auto whole = x.detach().requires_grad_();
  one(whole).pow(3).sum().backward();
  testing::run_threads(3, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      exchange_statistics(comm, torch::zeros({2 + 2 * 4}, torch::kDouble));
      exchange_statistics(comm, torch::zeros({1 + 2 * 4}, torch::kDouble));
      return;
    }
    BatchNorm1d layer(4);
    layer->to(torch::kDouble);
    convert_sync_batch_norm(layer, comm);
    const auto mine = x.chunk(2)[comm.rank() / 2].detach().requires_grad_();
    layer(mine).pow(3).sum().backward();
    expect_close(mine.grad(), whole.grad().chunk(2)[comm.rank() / 2], kDoubleTolerance, "gradient");
    expect_close(layer->running_var, one->running_var, kDoubleTolerance, "running variance");
  });
}

TEST(SyncBatchNorm, SecondDerivativesAreRefused) {
  testing::run_threads(2, [](Communicator& comm) {
    BatchNorm1d layer(3);
    convert_sync_batch_norm(layer, comm);
    const auto y = layer(values({4, 3}, torch::kFloat).requires_grad_());
    EXPECT_THROW(y.sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true),
                 InvalidArgument);
  });
}

// A model in the usual C++ style: typed members, and a Sequential.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).bias(false)));
    norm = register_module("norm", BatchNorm2d(4));
    rest = register_module(
        "rest", torch::nn::Sequential(torch::nn::ReLU(), torch::nn::Conv2d(4, 3, 3),
                                      BatchNorm2d(BatchNormOptions(3).track_running_stats(false)),
                                      torch::nn::ReLU()));
    last = register_module("last", torch::nn::Linear(3, 2));
  }
  using BatchNormOptions = torch::nn::BatchNormOptions;
  torch::Tensor forward(const torch::Tensor& x) {
    return last(rest->forward(norm(conv(x))).mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  BatchNorm2d norm{nullptr};
  torch::nn::Sequential rest{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Net);

Net make_net(torch::ScalarType type = torch::kDouble) {
  Net net;
  const torch::NoGradGuard no_grad;
  int64_t i = 0;
  for (auto& p : net->parameters())
    p.copy_((torch::arange(p.numel()) * 29 + i++).remainder(23).sub(10).div(15).view(p.sizes()));
  if (type != torch::kFloat) net->to(type);  // to() turns num_batches_tracked into type as well
  return net;
}

TEST(SyncBatchNorm, ConvertedModelUnderDdpTrainsAsOneProcess) {
  constexpr int kSteps = 10;
  const auto step = [](auto& model, auto& optimizer, const torch::Tensor& x) {
    optimizer.zero_grad();
    const auto loss = (model(x) - 1).pow(2).mean();
    loss.backward();
    optimizer.step();
  };
  Net one = make_net();
  torch::optim::SGD optimizer(one->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto whole = [](int i) { return values({12, 2, 7, 7}, torch::kDouble).sub(i % 3); };
  for (int i = 0; i < kSteps; ++i) step(one, optimizer, whole(i));

  for (const int ranks : {2, 3}) {
    std::mutex mutex;
    testing::run_threads(ranks, [&](Communicator& comm) {
      Net net = make_net();
      EXPECT_EQ(convert_sync_batch_norm(net, comm), 2);
      DistributedDataParallel model(net, comm);
      torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      for (int i = 0; i < kSteps; ++i) step(model, sgd, whole(i).chunk(ranks)[comm.rank()]);
      const std::lock_guard lock(mutex);
      for (const auto& item : one->named_parameters())
        expect_close(net->named_parameters()[item.key()].detach(), item.value().detach(), 1e-8,
                     item.key());
      expect_close(net->norm->running_mean, one->norm->running_mean, 1e-8, "running mean");
      expect_close(net->norm->running_var, one->norm->running_var, 1e-8, "running variance");
    });
  }
}

// The number of collectives in one forward: 2 if both layers are synchronised.
uint64_t exchanges(NetImpl& net, Communicator& comm) {
  const uint64_t before = comm.stats().collectives;
  const auto type = net.conv->weight.scalar_type();
  net.forward(values({2, 2, 7, 7}, type));
  return comm.stats().collectives - before;
}

TEST(SyncBatchNorm, TheConversionSurvivesWhatModelsGoThrough) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("lockstep_sync_batch_norm_" + std::to_string(getpid()) + ".safetensors");
  save(*make_net(torch::kFloat), path);
  testing::run_threads(2, [&](Communicator& comm) {
    Net net = make_net(torch::kFloat);
    std::stringstream plain;
    torch::save(net, plain);
    EXPECT_EQ(exchanges(*net, comm), 0u);
    const auto weight = net->rest->children()[2]->named_parameters()["weight"];

    EXPECT_EQ(convert_sync_batch_norm(net, comm), 2);
    EXPECT_EQ(exchanges(*net, comm), 2u);
    EXPECT_TRUE(weight.is_same(net->rest->children()[2]->named_parameters()["weight"]))
        << "an optimizer that was made before still has the model's parameters";
    torch::load(net, plain);
    EXPECT_EQ(exchanges(*net, comm), 2u) << "torch::load";
    lockstep::load(*net, path);
    EXPECT_EQ(exchanges(*net, comm), 2u) << "lockstep::load";
    net->norm->reset_running_stats();
    net->norm->reset_parameters();
    EXPECT_EQ(exchanges(*net, comm), 2u) << "reset_parameters";

    const auto copy = std::dynamic_pointer_cast<NetImpl>(net->clone());
    EXPECT_FALSE(copy->norm->running_mean.is_alias_of(net->norm->running_mean));
    EXPECT_EQ(exchanges(*copy, comm), 2u) << "clone()";
    const auto again = std::dynamic_pointer_cast<NetImpl>(copy->clone());
    EXPECT_EQ(exchanges(*again, comm), 2u) << "clone() of a clone";
    std::stringstream own;
    torch::save(Net(copy), own);
    Net other;
    torch::load(other, own);
    EXPECT_EQ(exchanges(*other, comm), 0u) << "a file has no communicator";

    for (const auto& model : {net.ptr(), copy}) {
      model->to(torch::kDouble);
      EXPECT_EQ(exchanges(*model, comm), 2u) << "to(double)";
      model->to(torch::kFloat);
      EXPECT_EQ(exchanges(*model, comm), 2u) << "to(float)";
    }
    EXPECT_EQ(convert_sync_batch_norm(net, comm), 2) << "once more";
    EXPECT_EQ(exchanges(*net, comm), 2u);
  });
  std::filesystem::remove(path);
}

TEST(SyncBatchNorm, OtherOperationsDoNotSeeTheMark) {
  testing::run_threads(2, [](Communicator& comm) {
    BatchNorm2d layer(4);
    convert_sync_batch_norm(layer, comm);
    auto& mean = layer->running_mean;
    mean.copy_(torch::arange(4));
    EXPECT_TRUE(torch::equal(mean + 1, torch::arange(1, 5).to(torch::kFloat)));
    EXPECT_TRUE(torch::equal(mean.view({2, 2})[1], torch::tensor({2.0F, 3.0F})));
    EXPECT_EQ(mean.sum().item<float>(), 6.0F);
    EXPECT_TRUE(torch::equal(mean.clone(), mean));
    EXPECT_EQ(mean.to(torch::kDouble).dtype(), torch::kDouble);
    std::ostringstream out;
    out << mean;
    EXPECT_NE(out.str().find('3'), std::string::npos);
    comm.broadcast(mean, 0);
  });
}

// Hooks around a layer stay around it, in either order.
TEST(SyncBatchNorm, OtherHooksStayAround) {
  testing::run_threads(2, [](Communicator& comm) {
    for (const bool converts_first : {false, true}) {
      Net net;
      int calls = 0;
      if (converts_first) convert_sync_batch_norm(net, comm);
      wrap_forward(*net, "norm", [&calls](const Forward& forward, const at::Tensor& x) {
        ++calls;
        return forward(x);
      });
      convert_sync_batch_norm(net, comm);
      convert_sync_batch_norm(net, comm);
      const uint64_t before = exchanges(*net, comm);
      EXPECT_GT(before, 0u) << converts_first;
      EXPECT_GT(calls, 0) << converts_first;
      freeze_child(*net, "norm");
      const at::Tensor mean = net->norm->running_mean.clone();
      EXPECT_LT(exchanges(*net, comm), before) << converts_first;
      EXPECT_TRUE(torch::equal(net->norm->running_mean, mean)) << converts_first;
    }
    Net frozen;
    freeze_child(*frozen, "norm");
    convert_sync_batch_norm(frozen, comm);
    const at::Tensor mean = frozen->norm->running_mean.clone();
    exchanges(*frozen, comm);
    EXPECT_TRUE(torch::equal(frozen->norm->running_mean, mean));
  });
}

TEST(SyncBatchNorm, AConversionThatIsLostIsNoticed) {
  testing::run_threads(2, [](Communicator& comm) {
    Net net = make_net(torch::kFloat);
    EXPECT_FALSE(is_sync_batch_norm(*net->norm));
    convert_sync_batch_norm(net, comm);
    EXPECT_TRUE(is_sync_batch_norm(*net->norm));
    EXPECT_FALSE(is_sync_batch_norm(*net->conv));
    DistributedDataParallel model(net, comm);
    const auto x = values({2, 2, 7, 7}, torch::kFloat);
    model(x).sum().backward();
    net->norm->running_mean.set_data(torch::zeros({4}));
    model(x).sum().backward();  // the running variance is still marked
    net->norm->running_var.set_data(torch::ones({4}));
    try {
      model(x);
      ADD_FAILURE() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("not any more: 'norm'; other tensors"),
                std::string::npos)
          << error.what();
    }
    convert_sync_batch_norm(net, comm);
    model(x).sum().backward();
    EXPECT_THROW(convert_sync_batch_norm(*torch::nn::Linear(2, 2), comm), InvalidArgument);
  });
}

TEST(SyncBatchNorm, ARankThatRunsOtherLayersIsNamed) {
  std::atomic<int> errors = 0;
  testing::run_threads(2, [&](Communicator& comm) {
    torch::nn::Sequential net(BatchNorm1d(3), BatchNorm1d(3));
    convert_sync_batch_norm(net, comm);
    const auto x = values({4, 3}, torch::kFloat);
    net->forward(x);
    try {
      // Rank 1 leaves out the first layer.
      if (comm.rank() == 0)
        net[0]->as<BatchNorm1d>()->forward(x);
      else
        net[1]->as<BatchNorm1d>()->forward(x);
    } catch (const Mismatch& error) {
      ++errors;
      const std::string text = error.what();
      const std::string at = std::to_string(comm.rank());
      EXPECT_NE(text.find("rank " + at + " is at the forward of '" + at + "' and rank "),
                std::string::npos)
          << text;
    }
  });
  EXPECT_EQ(errors, 2);
  // One rank makes more calls: the communicator sees a call that the other does not make.
  errors = 0;
  testing::run_threads(2, [&](Communicator& comm) {
    BatchNorm1d net(3);
    convert_sync_batch_norm(net, comm);
    const auto x = values({4, 3}, torch::kFloat);
    try {
      net(x);
      if (comm.rank() == 0) net(x);
      comm.barrier();
    } catch (const Mismatch& error) {
      ++errors;
      EXPECT_NE(std::string(error.what()).find("sync_batch_norm.cpp"), std::string::npos)
          << error.what();
    }
  });
  EXPECT_EQ(errors, 2);
}

}  // namespace
}  // namespace lockstep::inline v0::sync_batch_norm_test
