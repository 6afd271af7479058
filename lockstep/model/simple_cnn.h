// SimpleCnn: the small convolutional network that the first tutorial trains on MNIST.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The options of a SimpleCnn.
struct SimpleCnnOptions {
  int64_t channels = 1;    // of the images
  int64_t side = 28;       // of the images, pixels
  int64_t classes = 10;    // outputs of the model
  double dropout1 = 0.25;  // before fc1; 0 switches it off
  double dropout2 = 0.5;   // before fc2; 0 switches it off
};

// conv 3x3 1 -> 32, max-pool 2, ReLU, conv 3x3 32 -> 64, max-pool 2, ReLU, dropout, 3136 -> 128,
// ReLU, dropout, 128 -> 10, log-softmax (with the default sizes). 421,642 parameters, named conv1,
// conv2, fc1, fc2 (.weight, .bias) as in the Python class; after the same torch::manual_seed() they
// are what PyTorch draws there.
class LOCKSTEP_API SimpleCnnImpl : public torch::nn::Module {
 public:
  // Throws InvalidArgument for a dropout outside [0, 1), and for sizes below 1 (side: below 4).
  explicit SimpleCnnImpl(SimpleCnnOptions options = {});

  // images float [N, channels, side, side] -> log-probabilities [N, classes], for torch::nll_loss;
  // float32 also under autocast. Throws InvalidArgument for another shape.
  torch::Tensor forward(const torch::Tensor& images);

  const SimpleCnnOptions& options() const { return options_; }  // as given

 private:
  SimpleCnnOptions options_;
  // In the order in which Python draws their parameters.
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Dropout dropout1_, dropout2_;
  torch::nn::Linear fc1_, fc2_;
};

// The holder: `SimpleCnn model;`, `SimpleCnn model(SimpleCnnOptions{.dropout1 = 0})`,
// `model->forward(x)`, `model(x)`.
TORCH_MODULE(SimpleCnn);

}  // namespace lockstep::inline v0
