// ImageModel: any of the image classifiers of this room behind one type, chosen by name.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The options of an ImageModel.
struct ImageModelOptions {
  std::string name = "simple-cnn";  // image_model_names()
  int64_t channels = 1;             // of the images; ResNets take 3
  int64_t side = 28;                // pixels; ResNets have the CIFAR stem up to 64
  int64_t classes = 10;             // outputs of the model
  double dropout1 = 0.25;           // SimpleCnn's
  double dropout2 = 0.5;            // of the second dropout
};

// "simple-cnn", "resnet18", "resnet50".
const std::vector<std::string>& image_model_names();

// Its parameters and buffers have the names that the model itself gives them, so that checkpoints
// are the model's own.
class LOCKSTEP_API ImageModelImpl : public torch::nn::Module {
 public:
  // Draws the parameters as the model itself does. Throws InvalidArgument for an unknown name and
  // what the model does not take.
  explicit ImageModelImpl(const ImageModelOptions& options);

  // images float [N, channels, side, side] -> log-probabilities [N, classes], for torch::nll_loss;
  // float32 also under autocast.
  torch::Tensor forward(const torch::Tensor& images) { return forward_(images); }

 private:
  template <typename Model, typename Finish>
  void adopt(Model model, Finish finish);

  std::function<torch::Tensor(const torch::Tensor&)> forward_;
};

TORCH_MODULE(ImageModel);

}  // namespace lockstep::inline v0
