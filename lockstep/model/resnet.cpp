#include "lockstep/model/resnet.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>

#include <sstream>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

torch::nn::AnyModule batch_norm(int64_t channels) {
  return torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}

// A block of two or three convolutions whose input is added to their output. Members are made in
// the order in which torchvision draws their parameters.
class ResidualBlockImpl : public torch::nn::Module {
 public:
  // What both kinds of block are made from.
  struct Shape {
    int64_t channels;  // of the input
    int64_t planes;    // of the inner convolutions
    int64_t stride;
  };

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor x = input;
    for (size_t i = 0; i < convolutions_.size(); ++i) {
      if (i > 0) x.relu_();
      x = norms_[i].forward(convolutions_[i](x));
    }
    return x.add_(downsample_.is_empty() ? input : downsample_->forward(input)).relu_();
  }

  // The scale of the last normalisation.
  torch::Tensor last_scale() { return norms_.back().ptr()->named_parameters(false)["weight"]; }

 protected:
  explicit ResidualBlockImpl(torch::nn::Sequential downsample)
      : downsample_(std::move(downsample)) {}

  void add(torch::nn::Conv2d convolution, const NormLayer& norm) {
    const std::string number = std::to_string(convolutions_.size() + 1);
    const int64_t channels = convolution->options.out_channels();
    convolutions_.emplace_back(register_module("conv" + number, std::move(convolution)));
    norms_.push_back(norm(channels));
    register_module("bn" + number, norms_.back().ptr());
  }
  void finish() {
    if (!downsample_.is_empty()) register_module("downsample", downsample_);
  }

 private:
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<torch::nn::AnyModule> norms_;
  torch::nn::Sequential downsample_;  // may be empty: the input is added as it is
};

class BasicBlockImpl : public ResidualBlockImpl {
 public:
  static constexpr int64_t kExpansion = 1;
  BasicBlockImpl(const Shape& shape, torch::nn::Sequential downsample, const NormLayer& norm)
      : ResidualBlockImpl(std::move(downsample)) {
    add(convolution(shape.channels, shape.planes, 3, shape.stride), norm);
    add(convolution(shape.planes, shape.planes, 3, 1), norm);
    finish();
  }
};
TORCH_MODULE(BasicBlock);

class BottleneckImpl : public ResidualBlockImpl {
 public:
  static constexpr int64_t kExpansion = 4;
  BottleneckImpl(const Shape& shape, torch::nn::Sequential downsample, const NormLayer& norm)
      : ResidualBlockImpl(std::move(downsample)) {
    add(convolution(shape.channels, shape.planes, 1, 1), norm);
    add(convolution(shape.planes, shape.planes, 3, shape.stride), norm);
    add(convolution(shape.planes, shape.planes * kExpansion, 1, 1), norm);
    finish();
  }
};
TORCH_MODULE(Bottleneck);

ResNetOptions check_options(ResNetOptions options) {
  if (options.depth != 18 && options.depth != 50) {
    throw InvalidArgument("ResNet: depth is " + std::to_string(options.depth) + "; use 18 or 50");
  }
  if (options.num_classes < 1) {
    throw InvalidArgument("ResNet: num_classes is " + std::to_string(options.num_classes) +
                          "; use 1 or more");
  }
  if (!options.norm) options.norm = batch_norm;
  return options;
}

}  // namespace

ResNetImpl::ResNetImpl(const ResNetOptions& options)
    : options_(check_options(options)),
      conv1_(options.stem == ResNetStem::kImageNet ? convolution(3, 64, 7, 2)
                                                   : convolution(3, 64, 3, 1)),
      bn1_(options_.norm(64)),
      layer1_(make_layer(64, options.depth == 18 ? 2 : 3, 1)),
      layer2_(make_layer(128, options.depth == 18 ? 2 : 4, 2)),
      layer3_(make_layer(256, options.depth == 18 ? 2 : 6, 2)),
      layer4_(make_layer(512, options.depth == 18 ? 2 : 3, 2)),
      fc_(channels_, options.num_classes) {
  register_module("conv1", conv1_);
  register_module("bn1", bn1_.ptr());
  register_module("layer1", layer1_);
  register_module("layer2", layer2_);
  register_module("layer3", layer3_);
  register_module("layer4", layer4_);
  register_module("fc", fc_);
  // Normalisation layers begin with scale 1 and shift 0 by themselves.
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* layer = module->as<torch::nn::Conv2dImpl>()) {
      torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }
  if (!options_.zero_init_residual) return;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* block = dynamic_cast<ResidualBlockImpl*>(module.get())) {
      torch::nn::init::zeros_(block->last_scale());
    }
  }
}

torch::nn::Sequential ResNetImpl::make_layer(int64_t planes, int64_t blocks, int64_t stride) {
  const bool deep = options_.depth == 50;
  const int64_t out = planes * (deep ? BottleneckImpl::kExpansion : BasicBlockImpl::kExpansion);
  torch::nn::Sequential layer;
  for (int64_t i = 0; i < blocks; ++i) {
    const ResidualBlockImpl::Shape shape{channels_, planes, i == 0 ? stride : 1};
    torch::nn::Sequential downsample = nullptr;
    if (shape.stride != 1 || channels_ != out) {
      downsample = torch::nn::Sequential(convolution(channels_, out, 1, shape.stride));
      downsample->push_back(options_.norm(out));
    }
    if (deep) {
      layer->push_back(Bottleneck(shape, downsample, options_.norm));
    } else {
      layer->push_back(BasicBlock(shape, downsample, options_.norm));
    }
    channels_ = out;
  }
  return layer;
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images) {
  if (images.dim() != 4 || images.size(1) != 3) {
    std::ostringstream line;
    line << "ResNet: input of shape " << images.sizes() << "; it takes images [N, 3, H, W]";
    throw InvalidArgument(line.str());
  }
  torch::Tensor x = bn1_.forward(conv1_(images)).relu_();
  if (options_.stem == ResNetStem::kImageNet) x = at::max_pool2d(x, 3, 2, 1);
  x = layer4_->forward(layer3_->forward(layer2_->forward(layer1_->forward(x))));
  return fc_(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

}  // namespace lockstep::inline v0
