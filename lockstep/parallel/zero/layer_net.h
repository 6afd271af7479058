// A network with a list of layers, for tests of fetching a unit at a time.
#pragma once

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "lockstep/hooks/forward_hook.h"
#include "lockstep/parallel/zero/test_net.h"

namespace lockstep::inline v0::zero_test {

// Its signature lets hooks see the tensors.
class LayerImpl : public torch::nn::Module, public Hookable<at::Tensor(const at::Tensor&, double)> {
 public:
  explicit LayerImpl(int64_t width) {
    up_ = register_module("up", torch::nn::Linear(width, 3 * width));
    down_ = register_module("down", torch::nn::Linear(3 * width, width));
    scale_ = register_parameter("scale", torch::ones({width}));
  }

 protected:
  at::Tensor compute(const at::Tensor& x, double by) override {
    // The product with `scale_` uses parameters only.
    const at::Tensor weight = down_->weight * scale_.unsqueeze(1);
    return x + by * (torch::tanh(up_(x)).matmul(weight.t()) + down_->bias);
  }

 private:
  torch::nn::Linear up_{nullptr}, down_{nullptr};
  at::Tensor scale_;
};
TORCH_MODULE(Layer);

class LayerNetImpl : public torch::nn::Module {
 public:
  explicit LayerNetImpl(int layers, int64_t width = 10, at::ScalarType dtype = at::kDouble) {
    at::set_num_threads(1);
    const at::NoGradGuard no_grad;
    enter_ = register_module("enter", torch::nn::Linear(7, width));
    list_ = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < layers; ++i) list_->push_back(Layer(width));
    leave_ = register_module("leave", torch::nn::Linear(width, 5));
    to(dtype);
    int index = 0;
    for (at::Tensor& p : parameters())
      p.copy_(torch::arange(p.numel(), at::kDouble)
                  .mul(0.7)
                  .add(index++)
                  .sin()
                  .mul(0.3)
                  .view(p.sizes()));
  }

  // Goes through these layers, in this order; through all of them if none is given.
  at::Tensor forward(const at::Tensor& x, const std::vector<size_t>& way = {}) {
    at::Tensor h = enter_(x);
    if (way.empty()) {
      for (size_t i = 0; i < list_->size(); ++i) h = layer(i)->forward(h, 0.5);
    }
    for (const size_t i : way) h = layer(i)->forward(h, 0.5);
    return leave_(h);
  }
  std::shared_ptr<LayerImpl> layer(size_t i) { return list_->ptr<LayerImpl>(i); }

 private:
  torch::nn::Linear enter_{nullptr}, leave_{nullptr};
  torch::nn::ModuleList list_{nullptr};
};
TORCH_MODULE(LayerNet);

}  // namespace lockstep::inline v0::zero_test
