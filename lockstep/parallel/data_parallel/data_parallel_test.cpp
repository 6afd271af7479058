#include "lockstep/parallel/data_parallel/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>

#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/model/simple_cnn.h"

namespace lockstep::inline v0::data_parallel_test {
namespace {

using ::testing::HasSubstr;

torch::Tensor values(std::vector<int64_t> shape, torch::ScalarType type = torch::kDouble) {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  const auto x = torch::arange(count, torch::kDouble);
  return ((x * 37).remainder(101) / 50 - 1 + (x * 11).remainder(7) / 9).view(shape).to(type);
}

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    conv = register_module("conv", torch::nn::Conv2d(2, 4, 3));
    one = register_module("one", torch::nn::Linear(4, 8));
    two = register_module("two", torch::nn::Linear(8, 3));
    spare = register_module("spare", torch::nn::Linear(3, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return two(torch::tanh(one(torch::relu(conv(x)).mean({2, 3}))));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear one{nullptr}, two{nullptr}, spare{nullptr};
};
TORCH_MODULE(Net);

Net make_net() {
  Net net;
  const torch::NoGradGuard no_grad;
  int64_t i = 0;
  for (auto& p : net->parameters())
    p.copy_((torch::arange(p.numel()) * 29 + i++).remainder(23).sub(10).div(15).view(p.sizes()));
  net->to(torch::kDouble);
  return net;
}

void expect_close(const torch::Tensor& got, const torch::Tensor& expected, const std::string& what,
                  double tolerance = 1e-12) {
  ASSERT_EQ(got.defined(), expected.defined()) << what;
  if (!got.defined()) return;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_LE((got - expected).abs().max().item<double>(), tolerance) << what;
}

// Ten steps of SGD; the gradients of the last one are kept.
template <typename Model>
std::vector<torch::Tensor> train(Model& model, Net& net, int64_t rows) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::vector<torch::Tensor> seen;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const auto x = (values({rows, 2, 5, 5}) + step % 3).requires_grad_();
    const auto y = model(x);
    (y - 1).pow(2).mean().backward();
    seen.push_back(y.detach());
    seen.push_back(x.grad());
    optimizer.step();
  }
  for (const auto& p : net->parameters()) seen.push_back(p.detach());
  for (const auto& p : net->parameters()) seen.push_back(p.grad());
  return seen;
}

// Replicas that a function makes have the model's hooks, as they are at each forward.
TEST(DataParallel, HooksAreTheReplicasToo) {
  struct NormedImpl : torch::nn::Module {
    NormedImpl() {
      norm = register_module("norm", torch::nn::BatchNorm1d(3));
      fc = register_module("fc", torch::nn::Linear(3, 3));
    }
    torch::Tensor forward(const torch::Tensor& x) { return fc(norm(x)); }
    torch::nn::BatchNorm1d norm{nullptr};
    torch::nn::Linear fc{nullptr};
  };
  const auto net = std::make_shared<NormedImpl>();
  freeze_child(*net, "norm");
  DataParallel<std::shared_ptr<NormedImpl>> model(net, {.replicas = 2},
                                                  [] { return std::make_shared<NormedImpl>(); });
  const auto x = torch::randn({8, 3});
  EXPECT_TRUE(torch::allclose(model(x), net->forward(x))) << "running statistics on both";
  std::atomic<int> calls = 0;
  HookHandle handle =
      wrap_forward(*net, "fc", [&calls](const Forward& forward, const at::Tensor& y) {
        ++calls;
        return forward(y);
      });
  model(x);
  EXPECT_EQ(calls, 2);
  handle.remove();
  model(x);
  EXPECT_EQ(calls, 2);
}

TEST(DataParallel, TrainsAsThePlainModelDoes) {
  for (const int replicas : {1, 2, 3, 4}) {
    for (const int64_t rows : {8, 7, 3}) {
      Net plain = make_net(), net = make_net();
      const auto expected = train(plain, plain, rows);
      DataParallel model(net, {.replicas = replicas});
      const auto got = train(model, net, rows);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        expect_close(got[i], expected[i],
                     std::to_string(replicas) + " replicas, " + std::to_string(rows) + " rows, " +
                         std::to_string(i));
      }
      EXPECT_FALSE(net->spare->weight.grad().defined()) << "nobody used it";
    }
  }
}

TEST(DataParallel, RepeatsBitForBit) {
  std::vector<torch::Tensor> first;
  for (int i = 0; i < 3; ++i) {
    Net net = make_net();
    DataParallel model(net, {.replicas = 4});
    const auto got = train(model, net, 11);
    if (i == 0) first = got;
    for (size_t k = 0; k < got.size(); ++k) {
      if (!got[k].defined()) continue;
      EXPECT_TRUE(torch::equal(got[k], first[k])) << k;
    }
  }
}

TEST(DataParallel, ModelsThatCannotBeClonedComeWithAFunction) {
  const auto options = SimpleCnnOptions{.dropout1 = 0, .dropout2 = 0};
  SimpleCnn net(options), plain(options);
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : plain->named_parameters())
      item.value().copy_(net->named_parameters()[item.key()]);
  }
  DataParallel model(net, {}, [&] { return SimpleCnn(options); });
  const auto x = values({6, 1, 28, 28}, torch::kFloat);
  const auto y = torch::arange(6);
  torch::nll_loss(model(x), y).backward();
  torch::nll_loss(plain(x), y).backward();
  for (const auto& item : plain->named_parameters())
    expect_close(net->named_parameters()[item.key()].grad(), item.value().grad(), item.key(), 1e-5);

  try {
    DataParallel wrong(net, {.replicas = 2});
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("derive it from torch::nn::Cloneable, or give"), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  torch::nn::Linear layer(2, 3);
  const auto other = [] { return torch::nn::Linear(2, 4); };
  EXPECT_THROW(DataParallel(layer, {.replicas = 2}, other), InvalidArgument);
  EXPECT_THROW(DataParallel(layer, {.replicas = 0}), InvalidArgument);
  EXPECT_THROW(DataParallel(layer, {.dim = -1}), InvalidArgument);
}

// Records each replica's input, and where it ran.
struct Seen {
  std::mutex mutex;
  std::multiset<std::string> shapes;
  std::set<std::thread::id> threads;
  std::set<const void*> weights;
  template <typename... Tensors>
  void note(const void* weight, const Tensors&... tensors) {
    std::ostringstream text;
    ((text << tensors.sizes()), ...);
    const std::lock_guard lock(mutex);
    shapes.insert(text.str());
    threads.insert(std::this_thread::get_id());
    weights.insert(weight);
  }
};

using Named = std::map<std::string, torch::Tensor>;

struct NestedImpl : torch::nn::Cloneable<NestedImpl> {
  explicit NestedImpl(Seen* s) : seen(s) { NestedImpl::reset(); }
  void reset() override { scale = register_parameter("scale", torch::full({}, 2.0)); }
  std::tuple<torch::Tensor, std::vector<torch::Tensor>, Named, std::string> forward(
      const std::vector<torch::Tensor>& pair, const Named& named, double factor,
      std::optional<torch::Tensor> maybe = std::nullopt) {
    seen->note(scale.data_ptr(), pair[0], pair[1], named.at("x"));
    const auto y = pair[0] * scale * factor;
    Named result{{"sum", y.sum()}, {"index", torch::arange(pair[1].size(0))}};
    if (maybe) result["maybe"] = *maybe + 0;
    return {y, {pair[1], y + named.at("scalar")}, result, "text"};
  }
  Seen* seen;
  torch::Tensor scale;
};
TORCH_MODULE(Nested);

TEST(DataParallel, TakesAndGivesNestedValues) {
  Seen seen;
  Nested net(&seen);
  DataParallel model(net, {.replicas = 2});
  const auto a = values({17, 2}, torch::kFloat).requires_grad_();
  const auto b = values({15, 3}, torch::kFloat);
  const auto scalar = torch::full({}, 3.0F).requires_grad_();
  const auto [y, list, named, text] =
      model(std::vector<torch::Tensor>{a, b}, Named{{"x", values({4, 1, 2})}, {"scalar", scalar}},
            0.5, std::optional<torch::Tensor>(b));
  EXPECT_EQ(seen.shapes,
            (std::multiset<std::string>{"[9, 2][8, 3][2, 1, 2]", "[8, 2][7, 3][2, 1, 2]"}));
  EXPECT_EQ(seen.threads.size(), 2u);
  EXPECT_EQ(seen.threads.count(std::this_thread::get_id()), 0u);
  EXPECT_EQ(seen.weights, std::set<const void*>{net->scale.data_ptr()}) << "memory is shared";
  expect_close(y.detach(), a.detach(), "y");
  EXPECT_TRUE(torch::equal(list[0], b));
  expect_close(list[1].detach(), a.detach() + 3, "list");
  EXPECT_EQ(text, "text");
  EXPECT_EQ(named.at("sum").sizes(), (std::vector<int64_t>{2})) << "one a replica";
  EXPECT_EQ(named.at("index").sizes(), (std::vector<int64_t>{15}));
  EXPECT_FALSE(named.at("index").requires_grad());
  EXPECT_TRUE(torch::equal(named.at("maybe"), b));

  (y.sum() + list[1].sum() + named.at("sum").sum()).backward();
  expect_close(a.grad(), torch::full({17, 2}, 3.0F), "gradient of the input");
  expect_close(scalar.grad(), torch::full({}, 34.0F), "of what all replicas got", 1e-5);
  expect_close(net->scale.grad(), a.detach().sum() * 1.5, "of the parameter", 1e-4);
}

TEST(DataParallel, SmallBatchesUseFewerReplicas) {
  torch::nn::Linear layer(5, 10);
  DataParallel model(layer, {.replicas = 4});
  EXPECT_EQ(model(torch::randn({8, 5})).sizes(), (std::vector<int64_t>{8, 10}));
  EXPECT_EQ(model(torch::randn({1, 5})).sizes(), (std::vector<int64_t>{1, 10}));
  EXPECT_EQ(model(torch::randn({0, 5})).sizes(), (std::vector<int64_t>{0, 10}));
  EXPECT_EQ(model(torch::randn({5, 5})).sizes(), (std::vector<int64_t>{5, 10}));

  Seen seen;
  Nested net(&seen);
  DataParallel nested(net, {.replicas = 2});
  const Named named{{"x", values({4})}, {"scalar", torch::zeros({})}};
  try {
    nested(std::vector<torch::Tensor>{torch::zeros({4}), torch::zeros({1})}, named, 1.0);
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("divide into 2 and 1 parts"), std::string::npos)
        << error.what();
  }
}

struct DropImpl : torch::nn::Cloneable<DropImpl> {
  DropImpl() { reset(); }
  void reset() override { drop = register_module("drop", torch::nn::Dropout(0.5)); }
  torch::Tensor forward(const torch::Tensor& x) { return drop(x) + torch::rand_like(x) * 0; }
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(Drop);

TEST(DataParallel, DropoutRepeatsAndDiffersBetweenReplicas) {
  DataParallel model(Drop(), {.replicas = 3});
  const auto x = torch::ones({30, 40});
  const auto run = [&](uint64_t seed) {
    torch::manual_seed(seed);
    return std::pair{model(x), model(x)};
  };
  const auto [first, second] = run(1);
  const auto parts = first.chunk(3);
  EXPECT_FALSE(torch::equal(first, second));
  EXPECT_FALSE(torch::equal(parts[0], parts[1]));
  EXPECT_FALSE(torch::equal(parts[1], parts[2]));
  EXPECT_NEAR(first.mean().item<double>(), 1, 0.15);
  for (int i = 0; i < 20; ++i) {
    const auto [again, once_more] = run(1);
    EXPECT_TRUE(torch::equal(again, first));
    EXPECT_TRUE(torch::equal(once_more, second));
  }
  EXPECT_FALSE(torch::equal(run(2).first, first));
  model->eval();
  EXPECT_TRUE(torch::equal(model(x), x)) << "the mode follows the module";

  // A forward that draws nothing does not change the default generator.
  torch::nn::Linear layer(3, 3);
  DataParallel plain(layer, {.replicas = 2});
  torch::manual_seed(5);
  const auto expected = torch::rand({4});
  torch::manual_seed(5);
  plain(torch::ones({4, 3})).sum().backward();
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(DataParallel, TheCallersModesReachTheReplicas) {
  torch::nn::Linear layer(4, 4);
  DataParallel model(layer, {.replicas = 2});
  const auto x = torch::randn({6, 4});
  EXPECT_EQ(model(x).dtype(), torch::kFloat);
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    torch::Tensor y;
    {
      const amp::Autocast autocast(at::kCPU, type);
      y = model(x);
      EXPECT_EQ(y.dtype(), type);
      EXPECT_TRUE(torch::equal(y, layer(x)));
    }
    y.sum().backward();
    EXPECT_EQ(layer->weight.grad().dtype(), torch::kFloat);
  }
  EXPECT_EQ(model(x).dtype(), torch::kFloat);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(model(x).requires_grad());
  }
  EXPECT_TRUE(model(x).requires_grad());
  for (auto& p : layer->parameters()) p.requires_grad_(false);
  EXPECT_FALSE(model(x).requires_grad()) << "requires_grad follows the module";
  layer->to(torch::kDouble);
  EXPECT_EQ(model(x.to(torch::kDouble)).dtype(), torch::kDouble) << "and so does the type";
}

TEST(DataParallel, TheFirstReplicasBuffersAreKept) {
  torch::nn::Sequential net(torch::nn::BatchNorm1d(3)), plain(torch::nn::BatchNorm1d(3));
  DataParallel model(net, {.replicas = 2});
  const auto x = values({8, 3}, torch::kFloat);
  for (int i = 0; i < 3; ++i) {
    const auto y = model(x + i);
    const auto expected = plain->forward((x + i).chunk(2)[0]);
    expect_close(y.detach().chunk(2)[0], expected.detach(), "output", 1e-6);
  }
  const auto got = net->named_buffers(), expected = plain->named_buffers();
  for (const auto& item : expected) EXPECT_TRUE(torch::equal(got[item.key()], item.value()));
  EXPECT_EQ(got["0.num_batches_tracked"].item<int64_t>(), 3);
  // These are the ones that every replica evaluates with, and that are saved.
  net->eval();
  plain->eval();
  EXPECT_TRUE(model(x).equal(plain->forward(x)));
}

struct FailsImpl : torch::nn::Cloneable<FailsImpl> {
  FailsImpl() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({2})); }
  torch::Tensor forward(const torch::Tensor& x, bool in_forward) {
    const bool second = x[0][0].item<double>() > 5;
    if (second && in_forward) throw DataError("bad row");
    auto y = x * weight;
    if (second)
      y.register_hook(
          [](const torch::Tensor&) -> torch::Tensor { throw DataError("bad gradient"); });
    return y;
  }
  torch::Tensor weight;
};
TORCH_MODULE(Fails);

TEST(DataParallel, ErrorsNameTheReplica) {
  Fails net;
  DataParallel model(net, {.replicas = 2});
  const auto x = torch::tensor({{1.0, 1.0}, {9.0, 9.0}});
  const auto expect_error = [](const std::function<void()>& run, const std::string& expected) {
    try {
      run();
      ADD_FAILURE() << "no error";
    } catch (const ReplicaError& error) {
      EXPECT_EQ(error.replica(), 1);
      EXPECT_EQ(std::string(error.what()), expected);
      try {
        std::rethrow_if_nested(error);
        ADD_FAILURE() << "nothing nested";
      } catch (const DataError&) {
      }
    }
  };
  expect_error([&] { model(x, true); }, "DataParallel: forward of replica 1 (cpu) failed: bad row");
  const auto y = model(x, false);
  expect_error([&] { y.sum().backward(); },
               "DataParallel: backward of replica 1 (cpu) failed: bad gradient");
  EXPECT_FALSE(net->weight.grad().defined());
  model(torch::ones({4, 2}), true).sum().backward();
  expect_close(net->weight.grad(), torch::full({2}, 4.0F), "afterwards");
  EXPECT_THROW(model(torch::ones({4, 5}), true), ReplicaError) << "an error of libtorch";
}

TEST(DataParallel, FollowsAModelThatIsConvertedOrUnfrozenAndNamesWhatItCannotFollow) {
  struct PairImpl : torch::nn::Cloneable<PairImpl> {
    PairImpl() { reset(); }
    void reset() override {
      first = register_module("first", torch::nn::Linear(2, 3));
      second = register_module("second", torch::nn::Linear(3, 2));
    }
    torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }
    torch::nn::Linear first{nullptr}, second{nullptr};
  };
  const auto net = std::make_shared<PairImpl>();
  net->first->weight.set_requires_grad(false);
  DataParallel model(net, {.replicas = 2});
  model(torch::ones({4, 2})).sum().backward();
  net->first->weight.set_requires_grad(true);
  net->to(torch::kDouble);
  net->zero_grad();
  const auto x = values({4, 2}).to(torch::kDouble);
  model(x).pow(2).sum().backward();
  const auto got = net->first->weight.grad().clone();
  net->zero_grad();
  net->forward(x).pow(2).sum().backward();
  expect_close(got, net->first->weight.grad(), "weight");
  net->first = net->replace_module("first", torch::nn::Linear(2, 3));
  EXPECT_THAT(message_of<InvalidArgument>([&] { model(x); }),
              HasSubstr("DataParallel: parameter 'first.weight' is another tensor"));
}

TEST(DataParallel, AForgottenRegistrationIsNamed) {
  struct ForgetfulImpl : torch::nn::Cloneable<ForgetfulImpl> {
    void reset() override {}
    torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
    torch::nn::Linear layer{2, 2};
  };
  DataParallel model(std::make_shared<ForgetfulImpl>(), {.replicas = 2});
  EXPECT_THAT(message_of<InvalidArgument>([&] { model(torch::ones({2, 2})); }),
              HasSubstr("register_module()"));
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(model(torch::ones({2, 2})).size(0), 2);
}

TEST(DataParallel, BackwardIsAnOrdinaryOne) {
  Net net = make_net(), plain = make_net();
  DataParallel model(net, {.replicas = 2});
  const auto x = values({6, 2, 5, 5});
  // Backward runs twice over the same graph, and the gradients are summed.
  const auto y = model(x);
  y.sum().backward({}, /*retain_graph=*/true);
  y.sum().backward();
  plain(x).sum().mul(2).backward();
  expect_close(net->one->weight.grad(), plain->one->weight.grad(), "twice");
  EXPECT_THROW(y.sum().backward(), std::exception) << "the graph is gone";
  // Two forwards before one backward.
  net->zero_grad();
  plain->zero_grad();
  (model(x) * model(x * 2)).sum().backward();
  (plain(x) * plain(x * 2)).sum().backward();
  expect_close(net->one->weight.grad(), plain->one->weight.grad(), "two forwards");
  // torch::autograd::grad.
  const auto grads = torch::autograd::grad({model(x).sum()}, {net->two->bias});
  expect_close(grads[0], torch::full({3}, 6.0, torch::kDouble), "grad()");
  EXPECT_THROW(model(x).sum().backward({}, true, /*create_graph=*/true), InvalidArgument);
  // A parameter that changes between forward and backward is detected, as it is without replicas.
  const auto z = model(x);
  {
    const torch::NoGradGuard no_grad;
    net->two->weight.add_(1);
  }
  EXPECT_THROW(z.sum().backward(), std::exception);
  net->zero_grad();
  model(x).sum().backward();
}

TEST(DataParallel, CountsWhatPassesThroughTheOutputDevice) {
  torch::nn::Linear layer(5, 10);
  const int64_t parameters = (5 * 10 + 10) * 4;
  for (const int n : {1, 2, 4}) {
    DataParallel model(layer, {.replicas = n});
    const auto x = torch::randn({8, 5}).requires_grad_();
    model(x).sum().backward();
    const auto& traffic = model.traffic();
    const int64_t others = n - 1;
    EXPECT_EQ(traffic.forwards, 1);
    EXPECT_EQ(traffic.backwards, 1);
    EXPECT_EQ(traffic.replicated, others * parameters);
    EXPECT_EQ(traffic.scattered, others * 8 / n * 5 * 4);
    EXPECT_EQ(traffic.gathered, others * 8 / n * 10 * 4);
    EXPECT_EQ(traffic.scattered_gradients, traffic.gathered);
    EXPECT_EQ(traffic.reduced, others * parameters + traffic.scattered);
    EXPECT_GE(traffic.output_device_bytes, traffic.other_device_bytes);
    EXPECT_GE(traffic.output_device_bytes, 2 * parameters + 8 * (5 + 2 * 10) * 4);
  }
}

TEST(DataParallel, RunsOnGpus) {
  if (torch::cuda::device_count() < 1) GTEST_SKIP() << "no GPU";
  Net net = make_net(), plain = make_net();
  net->to(torch::kCUDA);
  // One of two replicas is on the CPU if there is only one GPU.
  const bool several = torch::cuda::device_count() > 1;
  DataParallel model(net, {.devices = {at::Device(at::kCUDA, 0),
                                       several ? at::Device(at::kCUDA, 1) : at::Device(at::kCPU)}});
  const auto x = values({7, 2, 5, 5});
  model(x.to(torch::kCUDA)).pow(2).sum().backward();
  plain(x).pow(2).sum().backward();
  for (const auto& item : plain->named_parameters()) {
    const auto grad = net->named_parameters()[item.key()].grad();
    expect_close(grad.defined() ? grad.cpu() : grad, item.value().grad(), item.key(), 1e-10);
  }
}

}  // namespace
}  // namespace lockstep::inline v0::data_parallel_test
