#include "lockstep/model/image_model.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/core/errors.h"
#include "lockstep/model/resnet.h"
#include "lockstep/model/simple_cnn.h"

namespace lockstep::inline v0 {
namespace image_model_test {

const ImageModelOptions kColour{.name = "resnet18", .channels = 3, .side = 32};

TEST(ImageModel, IsTheModelUnderTheSameNames) {
  torch::manual_seed(3);
  ResNet expected(ResNetOptions{.stem = ResNetStem::kCifar, .num_classes = 10});
  torch::manual_seed(3);
  ImageModel model(kColour);
  const auto found = model->named_parameters();
  ASSERT_EQ(found.keys(), expected->named_parameters().keys());
  EXPECT_EQ(model->named_buffers().keys(), expected->named_buffers().keys());
  for (const auto& item : expected->named_parameters())
    EXPECT_TRUE(torch::equal(found[item.key()], item.value())) << item.key();
  const auto images = torch::randn({2, 3, 32, 32});
  EXPECT_TRUE(
      torch::equal(model->forward(images), torch::log_softmax(expected->forward(images), 1)));
  // Modes reach the layers.
  model->eval();
  expected->eval();
  EXPECT_TRUE(
      torch::equal(model->forward(images), torch::log_softmax(expected->forward(images), 1)));
}

TEST(ImageModel, SimpleCnnOfAnySize) {
  torch::manual_seed(3);
  SimpleCnn expected;
  torch::manual_seed(3);
  ImageModel model(ImageModelOptions{.dropout1 = 0, .dropout2 = 0});
  expected->eval();
  const auto grey = torch::randn({2, 1, 28, 28});
  EXPECT_TRUE(torch::equal(model->forward(grey), expected->forward(grey)));
  ImageModel colour(
      ImageModelOptions{.name = "simple-cnn", .channels = 3, .side = 32, .classes = 7});
  EXPECT_EQ(colour->forward(torch::randn({2, 3, 32, 32})).sizes(), (torch::IntArrayRef{2, 7}));
  EXPECT_THROW(colour->forward(grey), InvalidArgument);
}

TEST(ImageModel, RefusesWhatItCannotMake) {
  EXPECT_THROW(ImageModel(ImageModelOptions{.name = "resnet19"}), InvalidArgument);
  EXPECT_THROW(ImageModel(ImageModelOptions{.name = "resnet18", .channels = 1}), InvalidArgument);
  EXPECT_THROW(ImageModel(ImageModelOptions{.side = 3}), InvalidArgument);
  for (const auto& name : image_model_names())
    EXPECT_NO_THROW(ImageModel(ImageModelOptions{.name = name, .channels = 3, .side = 32})) << name;
}

}  // namespace image_model_test
}  // namespace lockstep::inline v0
