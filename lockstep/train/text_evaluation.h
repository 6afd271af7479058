// Evaluating a text classifier over all ranks, every text counted exactly once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/tokenized_texts.h"
#include "lockstep/model/bert.h"
#include "lockstep/report/classification_report.h"
#include "lockstep/train/evaluation.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

struct TextEvaluationOptions {
  int64_t batch_size = 32;  // a rank
  std::optional<amp::AutocastSettings> autocast = {};
};

// The logits of every text, in order, and the labels. In evaluation mode and without gradients;
// afterwards the model is in the mode it was found in. Collective.
EvalPrediction predict_texts(BertClassifier& model, const data::TokenizedTexts& texts,
                             Communicator& comm, const TextEvaluationOptions& options = {});

// Texts without a label (-1) are left out. Collective.
Evaluation evaluate_texts(BertClassifier& model, const data::TokenizedTexts& texts,
                          Communicator& comm, const TextEvaluationOptions& options = {});

ConfusionMatrix confusion_matrix(const Evaluation& evaluation,
                                 const std::vector<std::string>& labels);

}  // namespace lockstep
