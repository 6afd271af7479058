// The models whose training steps are timed, each with its loss, random data and an optimizer's
// options: as the peers in Python have them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>

#include "lockstep/model/bert.h"
#include "lockstep/model/resnet.h"
#include "lockstep/model/simple_cnn.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/optim/algorithm.h"

namespace lockstep::bench {

inline constexpr int64_t kStepBatches = 4;  // different ones

using StepLoss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& label)>;

template <typename M>
struct StepModel {
  M model;
  StepLoss loss;
  at::Tensor data, labels;  // [kStepBatches, batch, ...], on the CPU
  optim::Algorithm algorithm;
};

// From ids and targets, int64 [B, 2, T], to the loss: what training a language model computes.
struct LmWithLossImpl : torch::nn::Module {
  explicit LmWithLossImpl(const LmConfig& config);
  at::Tensor forward(const at::Tensor& texts);
  TransformerLm lm;
};
TORCH_MODULE(LmWithLoss);

// Pictures have sides of so many pixels, and ten classes; texts so many tokens. Draw from torch's
// generator.
StepModel<SimpleCnn> simple_cnn_steps(int64_t batch);
StepModel<ResNet> resnet_steps(const ResNetOptions& options, int64_t batch, int64_t side);
StepModel<BertClassifier> bert_steps(BertConfig config, int64_t classes, int64_t batch,
                                     int64_t tokens);
StepModel<LmWithLoss> lm_steps(const LmConfig& config, int64_t batch, int64_t tokens);
// Ten layers of 3162 x 3162: nothing but gradients.
StepModel<torch::nn::Sequential> linear_steps(int64_t batch);

}  // namespace lockstep::bench
