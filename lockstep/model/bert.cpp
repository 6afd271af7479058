#include "lockstep/model/bert.h"

#include <ATen/ops/dropout.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/model/internal/bert_encoder.h"

namespace lockstep {
namespace {

void initialise(torch::nn::Module& model, const BertConfig& config) {
  const at::NoGradGuard no_grad;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::LinearImpl>()) {
      linear->weight.normal_(0, config.initializer_range);
      linear->bias.zero_();
    } else if (auto* embedding = module->as<torch::nn::EmbeddingImpl>()) {
      embedding->weight.normal_(0, config.initializer_range);
      if (const auto padding = embedding->options.padding_idx())
        embedding->weight[*padding].zero_();
    }
  }
}

const BertConfig& checked(const BertConfig& config) {
  check(config);
  return config;
}

}  // namespace

BertClassifierImpl::BertClassifierImpl(const BertConfig& config)
    : config_(checked(config)),
      bert_(register_module("bert", std::make_shared<internal::BertEncoder>(config))),
      classifier_(register_module(
          "classifier",
          torch::nn::Linear(config.hidden_size, static_cast<int64_t>(config.labels.size())))) {
  initialise(*this, config_);
}

at::Tensor BertClassifierImpl::forward(const at::Tensor& ids, const at::Tensor& attention_mask,
                                       const at::Tensor& token_type_ids,
                                       const at::Tensor& lengths) {
  if (!ids.defined() || ids.scalar_type() != at::kLong || ids.dim() < 1 || ids.dim() > 2 ||
      ids.numel() == 0)
    throw InvalidArgument("BertClassifier: ids must be int64 [B, T], or [N] packed, and not empty");
  const auto batch = ids.dim() == 2
                         ? internal::padded_batch(config_, ids, attention_mask, token_type_ids)
                         : internal::packed_batch(config_, ids, token_type_ids, lengths);
  const double dropout =
      config_.classifier_dropout < 0 ? config_.hidden_dropout_prob : config_.classifier_dropout;
  return classifier_(at::dropout(bert_->forward(batch), dropout, is_training()));
}

}  // namespace lockstep
