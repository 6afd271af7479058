#include "lockstep/model/bert.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones_like.h>
#include <torch/nn/modules/embedding.h>

#include "lockstep/core/errors.h"
#include "lockstep/model/internal/bert_encoder.h"
#include "lockstep/model/internal/follow.h"
#include "lockstep/model/internal/undrawn.h"

namespace lockstep::inline v0 {
namespace {

void draw(torch::nn::Module& model, const BertConfig& config) {
  const at::NoGradGuard no_grad;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::LinearImpl>()) {
      internal::draw_normal(linear->weight, config.initializer_range);
      linear->bias.zero_();
    } else if (auto* embedding = module->as<torch::nn::EmbeddingImpl>()) {
      internal::draw_normal(embedding->weight, config.initializer_range);
      if (const auto padding = embedding->options.padding_idx())
        embedding->weight[*padding].zero_();
    }
  }
}

BertConfig checked(const BertConfig& config) {
  check(config);
  return config;
}

}  // namespace

BertClassifierImpl::BertClassifierImpl(const BertConfig& config, InitialParameters initial)
    : config_(checked(config)),
      bert_(register_module("bert", std::make_shared<internal::BertEncoder>(config))),
      classifier_(register_module(
          "classifier", internal::undrawn_linear(config.hidden_size,
                                                 static_cast<int64_t>(config.labels.size())))) {
  for (const auto& item : named_modules("", /*include_self=*/false)) {
    const auto unit = std::dynamic_pointer_cast<BertUnit>(item.value());
    if (!unit) continue;
    units_.push_back(unit);
    unit_names_.push_back(item.key());
  }
  if (initial == InitialParameters::kDrawn) draw(*this, config_);
}

BertPass BertClassifierImpl::pass(const at::Tensor& ids, const at::Tensor& attention_mask,
                                  const at::Tensor& token_type_ids,
                                  const at::Tensor& lengths) const {
  if (!ids.defined() || ids.scalar_type() != at::kLong || ids.dim() < 1 || ids.dim() > 2 ||
      ids.numel() == 0)
    throw InvalidArgument("BertClassifier: ids must be int64 [B, T], or [N] packed, and not empty");
  return bert_->pass(ids.dim() == 2
                         ? internal::padded_batch(config_, ids, attention_mask, token_type_ids)
                         : internal::packed_batch(config_, ids, token_type_ids, lengths));
}

at::Tensor BertClassifierImpl::ids_of(const BertPass& pass) {
  return pass->batch.ids;
}

at::Tensor BertClassifierImpl::classify(const at::Tensor& pooled) {
  const double dropout =
      config_.classifier_dropout < 0 ? config_.hidden_dropout_prob : config_.classifier_dropout;
  internal::follow(*this, children()[1], classifier_);
  const auto part = bert_->part();
  if (!part || dropout == 0 || !pooled.is_cpu())
    return classifier_(at::dropout(pooled, dropout, is_training()));
  const at::Tensor mask = at::dropout(at::ones_like(pooled), dropout, /*train=*/true);
  part->agree(mask);
  return classifier_(pooled * mask);
}

at::Tensor BertClassifierImpl::forward(const at::Tensor& ids, const at::Tensor& attention_mask,
                                       const at::Tensor& token_type_ids,
                                       const at::Tensor& lengths) {
  return classify(bert_->forward(pass(ids, attention_mask, token_type_ids, lengths)));
}

}  // namespace lockstep::inline v0
