#include "lockstep/bench/step_models.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace lockstep::inline v0::bench {
namespace {

constexpr int64_t kPictureClasses = 10;
const torch::optim::AdamWOptions kTransformerOptions(3e-5);

at::Tensor drawn_classes(int64_t classes, int64_t batch) {
  return torch::randint(0, classes, {kStepBatches, batch}, torch::kLong);
}
at::Tensor drawn_ids(int64_t vocabulary, int64_t batch, int64_t tokens) {
  return torch::randint(1, vocabulary, {kStepBatches, batch, tokens}, torch::kLong);
}

at::Tensor entropy_of(const at::Tensor& output, const at::Tensor& label) {
  return torch::nn::functional::cross_entropy(output.to(at::kFloat), label);
}

}  // namespace

LmWithLossImpl::LmWithLossImpl(const LmConfig& config)
    : lm(register_module("lm", TransformerLm(config))) {}

at::Tensor LmWithLossImpl::forward(const at::Tensor& texts) {
  return lm->loss(texts.select(1, 0), texts.select(1, 1));
}

StepModel<SimpleCnn> simple_cnn_steps(int64_t batch) {
  return {SimpleCnn(),
          [](const at::Tensor& output, const at::Tensor& label) {
            return torch::nll_loss(output, label);
          },
          torch::randn({kStepBatches, batch, 1, 28, 28}), drawn_classes(kPictureClasses, batch),
          torch::optim::SGDOptions(0.01).momentum(0.5)};
}

StepModel<ResNet> resnet_steps(const ResNetOptions& options, int64_t batch, int64_t side) {
  return {ResNet(options), entropy_of, torch::randn({kStepBatches, batch, 3, side, side}),
          drawn_classes(kPictureClasses, batch),
          torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(5e-4)};
}

StepModel<BertClassifier> bert_steps(BertConfig config, int64_t classes, int64_t batch,
                                     int64_t tokens) {
  config.labels.clear();
  for (int64_t i = 0; i < classes; ++i) config.labels.push_back(std::to_string(i));
  return {BertClassifier(config), entropy_of, drawn_ids(config.vocab_size, batch, tokens),
          drawn_classes(classes, batch), kTransformerOptions};
}

StepModel<LmWithLoss> lm_steps(const LmConfig& config, int64_t batch, int64_t tokens) {
  const at::Tensor ids = drawn_ids(config.vocab_size, batch, tokens), targets = ids.roll(-1, 2);
  return {LmWithLoss(config), [](const at::Tensor& output, const at::Tensor&) { return output; },
          torch::stack({ids, targets}, 2), targets, kTransformerOptions};
}

StepModel<torch::nn::Sequential> linear_steps(int64_t batch) {
  constexpr int64_t kWide = 3162;
  torch::nn::Sequential model;
  for (int i = 0; i < 10; ++i) model->push_back(torch::nn::Linear(kWide, kWide));
  return {model,
          [](const at::Tensor& output, const at::Tensor& label) {
            return torch::mse_loss(output, label);
          },
          torch::randn({kStepBatches, batch, kWide}), torch::randn({kStepBatches, batch, kWide}),
          torch::optim::SGDOptions(0.01)};
}

}  // namespace lockstep::inline v0::bench
