// Expected values: PyTorch 2.13, the class SimpleCNN of the tutorial, after
// torch.manual_seed(1234).
#include "lockstep/model/simple_cnn.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace simple_cnn_test {

struct ExpectedParameter {
  const char* name;
  std::vector<int64_t> shape;
  double sum;       // of the values
  double weighted;  // of value i times i % 7
};

const std::vector<ExpectedParameter> kParameters = {
    {"conv1.weight", {32, 1, 3, 3}, 0.7232764106374816, 1.935981960807112},
    {"conv1.bias", {32}, 1.8909432798391208, 5.4810538596939296},
    {"conv2.weight", {64, 32, 3, 3}, 2.8396226678928542, 4.906162663515715},
    {"conv2.bias", {64}, 0.05346648924751207, -0.5380025651538745},
    {"fc1.weight", {128, 3136}, -4.510829635725686, -16.036766708347407},
    {"fc1.bias", {128}, 0.03867026221996639, -0.17889932240359485},
    {"fc2.weight", {10, 128}, 0.502846138762834, 4.573070954422292},
    {"fc2.bias", {10}, 0.0498775276937522, -0.005406359094195068},
};

torch::Tensor three_images() {
  return (torch::arange(3 * 784) % 17).to(torch::kFloat).view({3, 1, 28, 28}) / 17 - 0.3;
}

std::vector<float> row(const torch::Tensor& t, int64_t i) {
  const auto values = t.detach()[i].contiguous();
  return {values.data_ptr<float>(), values.data_ptr<float>() + values.numel()};
}

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 2e-6) << i;
}

TEST(SimpleCnn, StartsWithPythonsParameters) {
  torch::manual_seed(1234);
  SimpleCnn model;
  const auto named = model->named_parameters();
  ASSERT_EQ(named.size(), kParameters.size());
  int64_t count = 0;
  for (size_t i = 0; i < kParameters.size(); ++i) {
    const auto& expected = kParameters[i];
    SCOPED_TRACE(expected.name);
    EXPECT_EQ(named[i].key(), expected.name);
    EXPECT_EQ(named[i].value().sizes(), torch::IntArrayRef(expected.shape));
    const auto values = named[i].value().detach().to(torch::kDouble).flatten();
    const auto weights = torch::arange(values.numel(), torch::kDouble) % 7;
    // Other numbers would be far off; these differ in their last bit where libtorch has no fused
    // multiplication and addition (ATEN_CPU_CAPABILITY=default).
    EXPECT_NEAR(values.sum().item<double>(), expected.sum, 1e-4);
    EXPECT_NEAR((values * weights).sum().item<double>(), expected.weighted, 1e-4);
    count += values.numel();
  }
  EXPECT_EQ(count, 421642);
  EXPECT_TRUE(model->named_buffers().is_empty());
  EXPECT_EQ(model->children().size(), 6U);
}

TEST(SimpleCnn, GivesPythonsOutput) {
  torch::manual_seed(1234);
  SimpleCnn model;
  model->eval();
  const auto output = model(three_images());
  EXPECT_EQ(output.sizes(), (torch::IntArrayRef{3, 10}));
  expect_near(row(output, 1),
              {-2.321739435195923F, -2.2824761867523193F, -2.350559711456299F, -2.229001760482788F,
               -2.2102034091949463F, -2.322598457336426F, -2.3973388671875F, -2.1947882175445557F,
               -2.3859150409698486F, -2.355239152908325F});

  // In training, dropout takes the same numbers from the generator as in Python.
  model->train();
  torch::manual_seed(5);
  expect_near(row(model(three_images()), 1),
              {-2.3423712253570557F, -2.294919013977051F, -2.3283443450927734F, -2.244671106338501F,
               -2.353383779525757F, -2.305795669555664F, -2.3279013633728027F, -2.2065937519073486F,
               -2.370779037475586F, -2.2633450031280518F});
}

TEST(SimpleCnn, TrainsAsInPython) {
  torch::manual_seed(1234);
  SimpleCnn model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  const auto target = torch::tensor({3, 1, 4}, torch::kLong);
  for (const double expected : {2.227931022644043, 2.180879831314087, 2.1082136631011963,
                                2.1076605319976807, 2.026336431503296}) {
    optimizer.zero_grad();
    const auto loss = torch::nll_loss(model(three_images()), target);
    EXPECT_NEAR(loss.item<double>(), expected, 1e-5);
    loss.backward();
    optimizer.step();
  }
}

TEST(SimpleCnn, DropoutOfZeroDropsNothing) {
  SimpleCnn model(SimpleCnnOptions{.dropout1 = 0, .dropout2 = 0});
  const auto training = model(three_images());
  model->eval();
  EXPECT_TRUE(torch::equal(training, model(three_images())));
  EXPECT_EQ(model->options().dropout1, 0.0);
}

TEST(SimpleCnn, RefusesWhatItCannotTake) {
  SimpleCnn model;
  EXPECT_THROW(model(torch::zeros({4, 784})), InvalidArgument);
  EXPECT_THROW(model(torch::zeros({4, 3, 28, 28})), InvalidArgument);
  EXPECT_THROW(SimpleCnn(SimpleCnnOptions{.dropout1 = 1.0}), InvalidArgument);
  EXPECT_THROW(SimpleCnn(SimpleCnnOptions{.dropout2 = -0.1}), InvalidArgument);
  EXPECT_EQ(model(torch::zeros({0, 1, 28, 28})).sizes(), (torch::IntArrayRef{0, 10}));
}

}  // namespace simple_cnn_test
}  // namespace lockstep::inline v0
