#include "lockstep/model/image_model.h"

#include <functional>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/model/internal/log_probabilities.h"
#include "lockstep/model/resnet.h"
#include "lockstep/model/simple_cnn.h"

namespace lockstep::inline v0 {
namespace {

constexpr int64_t kLargestCifarSide = 64;

ResNet make_resnet(const ImageModelOptions& options, int depth) {
  if (options.channels != 3) {
    throw InvalidArgument("ImageModel: " + options.name + " takes images of 3 channels, not " +
                          std::to_string(options.channels));
  }
  const bool small = options.side <= kLargestCifarSide;
  return ResNet(ResNetOptions{.depth = depth,
                              .stem = small ? ResNetStem::kCifar : ResNetStem::kImageNet,
                              .num_classes = options.classes});
}

}  // namespace

const std::vector<std::string>& image_model_names() {
  static const std::vector<std::string> names{"simple-cnn", "resnet18", "resnet50"};
  return names;
}

// The model's children become this module's: with the model itself as a child, every name would
// begin with that child's.
template <typename Model, typename Finish>
void ImageModelImpl::adopt(Model model, Finish finish) {
  for (const auto& child : model->named_children()) register_module(child.key(), child.value());
  forward_ = [model = std::move(model), finish](const torch::Tensor& images) mutable {
    return finish(model->forward(images));
  };
}

ImageModelImpl::ImageModelImpl(const ImageModelOptions& options) {
  if (options.name == "simple-cnn") {
    adopt(SimpleCnn(SimpleCnnOptions{.channels = options.channels,
                                     .side = options.side,
                                     .classes = options.classes,
                                     .dropout1 = options.dropout1,
                                     .dropout2 = options.dropout2}),
          std::identity());
  } else if (options.name == "resnet18") {
    adopt(make_resnet(options, 18), internal::log_probabilities);
  } else if (options.name == "resnet50") {
    adopt(make_resnet(options, 50), internal::log_probabilities);
  } else {
    throw InvalidArgument("there is no image model '" + options.name +
                          "'; choose simple-cnn, resnet18 or resnet50");
  }
}

}  // namespace lockstep::inline v0
