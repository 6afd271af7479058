#include "lockstep/train/text_evaluation.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/nonzero.h>

#include "lockstep/train/evaluation_pass.h"

namespace lockstep::inline v0 {

EvalPrediction predict_texts(BertClassifier& model, const data::TokenizedTexts& texts,
                             Communicator& comm, const TextEvaluationOptions& options) {
  std::vector<at::Tensor> logits, labels;
  evaluate_batches(model, texts, comm, options.batch_size, options.autocast, [&](auto& batch) {
    logits.push_back(
        model(batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths)
            .to(at::kCPU, at::kFloat));
    labels.push_back(batch.labels.cpu());
  });
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

}  // namespace lockstep::inline v0
