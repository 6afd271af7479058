#include "lockstep/model/simple_cnn.h"

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>

#include <sstream>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/model/internal/log_probabilities.h"

namespace lockstep::inline v0 {
namespace {

double check_dropout(const char* name, double p) {
  if (p >= 0.0 && p < 1.0) return p;
  throw InvalidArgument(std::string("SimpleCnn: ") + name + " is " + std::to_string(p) +
                        "; use 0 up to below 1");
}

SimpleCnnOptions check_sizes(const SimpleCnnOptions& options) {
  if (options.channels < 1 || options.side < 4 || options.classes < 1) {
    throw InvalidArgument("SimpleCnn: " + std::to_string(options.channels) + " channels, side " +
                          std::to_string(options.side) + ", " + std::to_string(options.classes) +
                          " classes; use at least 1, 4 and 1");
  }
  return options;
}

torch::nn::Conv2d conv3x3(int64_t in, int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
}

}  // namespace

SimpleCnnImpl::SimpleCnnImpl(SimpleCnnOptions options)
    : options_(check_sizes(options)),
      conv1_(conv3x3(options.channels, 32)),
      conv2_(conv3x3(32, 64)),
      dropout1_(check_dropout("dropout1", options.dropout1)),
      dropout2_(check_dropout("dropout2", options.dropout2)),
      fc1_(64 * (options.side / 4) * (options.side / 4), 128),
      fc2_(128, options.classes) {
  register_module("conv1", conv1_);
  register_module("conv2", conv2_);
  register_module("dropout1", dropout1_);
  register_module("dropout2", dropout2_);
  register_module("fc1", fc1_);
  register_module("fc2", fc2_);
}

torch::Tensor SimpleCnnImpl::forward(const torch::Tensor& images) {
  if (images.dim() != 4 || images.size(1) != options_.channels || images.size(2) != options_.side ||
      images.size(3) != options_.side) {
    std::ostringstream line;
    line << "SimpleCnn: input of shape " << images.sizes() << "; it takes images [N, "
         << options_.channels << ", " << options_.side << ", " << options_.side << "]";
    throw InvalidArgument(line.str());
  }
  torch::Tensor x = at::relu(at::max_pool2d(conv1_(images), 2));
  x = at::relu(at::max_pool2d(conv2_(x), 2));
  x = dropout1_(x.flatten(1));
  x = dropout2_(at::relu(fc1_(x)));
  return internal::log_probabilities(fc2_(x));
}

}  // namespace lockstep::inline v0
