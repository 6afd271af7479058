// ResNet-18 and ResNet-50 for images (He et al., "Deep Residual Learning for Image Recognition",
// arXiv:1512.03385), with the names, shapes and initialisation of torchvision's resnet18 and
// resnet50.
#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The layers before the first block.
enum class ResNetStem {
  kImageNet,  // convolution 7x7 of stride 2, max-pool 3x3 of stride 2: images of about 224x224
  kCifar,     // convolution 3x3, no pooling: images of 32x32
};

// Makes the layer after a convolution of so many channels: a module with `weight` and forward(x).
using NormLayer = std::function<torch::nn::AnyModule(int64_t channels)>;

// The options of a ResNet.
struct ResNetOptions {
  int depth = 18;  // 18, or 50: bottlenecks, their stride in the 3x3 convolution
  ResNetStem stem = ResNetStem::kImageNet;  // for large or small pictures
  int64_t num_classes = 1000;               // outputs of the model
  // Each residual branch begins as zero (Goyal et al., arXiv:1706.02677, section 5.1).
  bool zero_init_residual = false;
  NormLayer norm = nullptr;  // nullptr: torch::nn::BatchNorm2d
};

// Parameters and buffers have torchvision's names (conv1, bn1, layer1.0.conv1,
// layer2.0.downsample.0, ..., fc), so that safetensors files are exchanged with it. ImageNet, 1000
// classes: 11,689,512 parameters at depth 18, 25,557,032 at 50. After the same torch::manual_seed()
// they are what torchvision draws.
class LOCKSTEP_API ResNetImpl : public torch::nn::Module {
 public:
  // Throws InvalidArgument for another depth and for num_classes below 1.
  explicit ResNetImpl(const ResNetOptions& options = {});

  // images float [N, 3, H, W] -> logits [N, num_classes]. Throws InvalidArgument for another shape.
  torch::Tensor forward(const torch::Tensor& images);

  const ResNetOptions& options() const { return options_; }  // as given

 private:
  torch::nn::Sequential make_layer(int64_t planes, int64_t blocks, int64_t stride);

  ResNetOptions options_;
  int64_t channels_ = 64;  // that the next block takes, while the layers are made
  torch::nn::Conv2d conv1_;
  torch::nn::AnyModule bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};

// The holder: `ResNet model;`, `ResNet model(ResNetOptions{.depth = 50})`.
TORCH_MODULE(ResNet);

}  // namespace lockstep::inline v0
