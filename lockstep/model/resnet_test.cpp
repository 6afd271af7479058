// tests/oracle/resnet_parity.py holds the model against PyTorch; here is what needs no Python.
#include "lockstep/model/resnet.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace resnet_test {

int64_t parameter_count(const ResNet& model) {
  int64_t count = 0;
  for (const auto& parameter : model->parameters()) count += parameter.numel();
  return count;
}

TEST(ResNet, HasTorchvisionsNumberOfParameters) {
  EXPECT_EQ(parameter_count(ResNet()), 11'689'512);
  EXPECT_EQ(parameter_count(ResNet(ResNetOptions{.depth = 50})), 25'557'032);
  EXPECT_EQ(parameter_count(ResNet(ResNetOptions{.stem = ResNetStem::kCifar, .num_classes = 10})),
            11'173'962);
}

TEST(ResNet, HasTorchvisionsNames) {
  const ResNet model(ResNetOptions{.depth = 50, .stem = ResNetStem::kCifar, .num_classes = 10});
  const auto parameters = model->named_parameters();
  for (const char* name :
       {"conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer1.0.bn3.bias",
        "layer1.0.downsample.0.weight", "layer1.0.downsample.1.weight", "layer2.3.conv2.weight",
        "layer3.5.conv3.weight", "layer4.2.bn3.weight", "fc.weight", "fc.bias"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
  EXPECT_FALSE(parameters.contains("layer1.1.downsample.0.weight"));
  EXPECT_FALSE(parameters.contains("conv1.bias"));
  EXPECT_EQ(parameters.size(), 161U);
  const auto buffers = model->named_buffers();
  for (const char* name : {"bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked",
                           "layer2.0.downsample.1.running_mean"}) {
    EXPECT_TRUE(buffers.contains(name)) << name;
  }
  EXPECT_EQ(buffers.size(), 3U * 53U);
  const auto shallow = ResNet(ResNetOptions{})->named_parameters();
  EXPECT_EQ(shallow.size(), 62U);
  EXPECT_TRUE(shallow.contains("layer2.0.downsample.0.weight"));
  EXPECT_FALSE(shallow.contains("layer1.0.downsample.0.weight"));
}

TEST(ResNet, StartsAsTorchvisionDoes) {
  torch::manual_seed(1);
  const ResNet model(ResNetOptions{.num_classes = 10, .zero_init_residual = true});
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["layer1.0.bn2.weight"].abs().max().item<float>(), 0);
  EXPECT_EQ(parameters["layer1.0.bn1.weight"].min().item<float>(), 1);
  EXPECT_EQ(parameters["layer2.0.downsample.1.weight"].min().item<float>(), 1);
  EXPECT_EQ(parameters["bn1.bias"].abs().max().item<float>(), 0);
  // sqrt(2 / fan_out)
  EXPECT_NEAR(parameters["layer4.1.conv2.weight"].std().item<float>(), 0.0208333, 1e-4);
}

TEST(ResNet, TakesAnotherNormalisation) {
  const NormLayer group_norm = [](int64_t channels) {
    return torch::nn::AnyModule(torch::nn::GroupNorm(8, channels));
  };
  ResNet model(ResNetOptions{.stem = ResNetStem::kCifar, .num_classes = 10, .norm = group_norm});
  EXPECT_EQ(model->named_buffers().size(), 0U);
  EXPECT_EQ(model->named_parameters().size(), 62U);
  const auto logits = model->forward(torch::randn({2, 3, 8, 8}));
  EXPECT_EQ(logits.sizes(), (torch::IntArrayRef{2, 10}));
  logits.sum().backward();
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(item.value().grad().defined()) << item.key();
}

TEST(ResNet, TheStemsDifferBySize) {
  const torch::NoGradGuard no_grad;
  const auto images = torch::randn({1, 3, 32, 32});
  for (const auto stem : {ResNetStem::kImageNet, ResNetStem::kCifar}) {
    ResNet model(ResNetOptions{.stem = stem, .num_classes = 7});
    model->eval();
    EXPECT_EQ(model->forward(images).sizes(), (torch::IntArrayRef{1, 7}));
  }
}

TEST(ResNet, RefusesWhatDoesNotFit) {
  EXPECT_THROW(ResNet(ResNetOptions{.depth = 34}), InvalidArgument);
  EXPECT_THROW(ResNet(ResNetOptions{.num_classes = 0}), InvalidArgument);
  ResNet model(ResNetOptions{.num_classes = 10});
  EXPECT_THROW(model->forward(torch::zeros({1, 1, 32, 32})), InvalidArgument);
  EXPECT_THROW(model->forward(torch::zeros({3, 32, 32})), InvalidArgument);
}

}  // namespace resnet_test
}  // namespace lockstep::inline v0
