// The models whose training steps are timed, each with its loss, random data and an optimizer's
// options, which are those of the peers in Python.
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

namespace lockstep::inline v0::bench {

inline constexpr int64_t kStepBatches = 4;  // number of different batches

using StepLoss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& label)>;

template <typename M>
struct StepModel {
  M model;
  StepLoss loss;
  at::Tensor data, labels;  // [kStepBatches, batch, ...], on the CPU
  optim::Algorithm algorithm;
};

// Computes the loss from ids and targets, int64 [B, 2, T], as the training of a language model
// does.
struct LmWithLossImpl : torch::nn::Module {
  explicit LmWithLossImpl(const LmConfig& config);
  at::Tensor forward(const at::Tensor& texts);
  TransformerLm lm;
};
TORCH_MODULE(LmWithLoss);

// Pictures have `side` pixels on each side and belong to ten classes; texts have `tokens` tokens.
// Random values come from torch's default generator.
StepModel<SimpleCnn> simple_cnn_steps(int64_t batch);
StepModel<ResNet> resnet_steps(const ResNetOptions& options, int64_t batch, int64_t side);
StepModel<BertClassifier> bert_steps(BertConfig config, int64_t classes, int64_t batch,
                                     int64_t tokens);
StepModel<LmWithLoss> lm_steps(const LmConfig& config, int64_t batch, int64_t tokens);
// Ten layers of 3162 x 3162, whose gradients are all the work.
StepModel<torch::nn::Sequential> linear_steps(int64_t batch);

}  // namespace lockstep::inline v0::bench
