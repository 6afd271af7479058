#include "lockstep/train/text_evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/nonzero.h>

#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/flat/module_device.h"

namespace lockstep {

EvalPrediction predict_texts(BertClassifier& model, const data::TokenizedTexts& texts,
                             Communicator& comm, const TextEvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  const bool training = model->is_training();
  model->eval();
  std::vector<at::Tensor> logits, labels;
  data::ShardedSequentialSampler sampler(texts.size(), comm);
  if (sampler.size() > 0) {
    data::Loader loader(texts, sampler,
                        {.batch_size = options.batch_size, .device = device_of(*model)});
    for (auto& batch : loader) {
      std::optional<amp::Autocast> autocast;
      if (options.autocast) autocast.emplace(*options.autocast);
      logits.push_back(
          model(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths)
              .to(at::kCPU, at::kFloat));
      labels.push_back(batch.labels.cpu());
    }
  }
  model->train(training);
  EvalPrediction mine;
  if (!logits.empty()) mine = {at::cat(logits), at::cat(labels)};
  return gather_predictions(comm, mine);
}

Evaluation evaluate_texts(BertClassifier& model, const data::TokenizedTexts& texts,
                          Communicator& comm, const TextEvaluationOptions& options) {
  const EvalPrediction all = predict_texts(model, texts, comm, options);
  Evaluation evaluation = count_classes(all);
  const at::Tensor known = all.label_ids.ge(0).nonzero().flatten();
  if (known.size(0) > 0) {
    evaluation.loss = at::cross_entropy_loss(all.predictions.index_select(0, known),
                                             all.label_ids.index_select(0, known))
                          .item<double>();
  }
  return evaluation;
}

ConfusionMatrix confusion_matrix(const Evaluation& evaluation,
                                 const std::vector<std::string>& labels) {
  std::vector<int64_t> counts;
  for (const auto& row : evaluation.confusion) counts.insert(counts.end(), row.begin(), row.end());
  return {labels, counts};
}

}  // namespace lockstep
