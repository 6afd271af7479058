// Evaluates a text classifier over all ranks and counts every text exactly once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/data/tokenized_texts.h"
#include "lockstep/model/bert.h"
#include "lockstep/report/classification_report.h"
#include "lockstep/train/evaluation.h"
#include "lockstep/train/metrics.h"

namespace lockstep::inline v0 {

// The options of predict_texts() and evaluate_texts().
struct TextEvaluationOptions {
  int64_t batch_size = 32;                             // a rank
  std::optional<amp::AutocastSettings> autocast = {};  // nullopt: in float32
};

// Returns the logits of every text, in order, and the labels. The model is in evaluation mode
// meanwhile, and has its former mode afterwards.
// Collective: all ranks.
LOCKSTEP_API EvalPrediction predict_texts(BertClassifier& model, const data::TokenizedTexts& texts,
                                          Communicator& comm,
                                          const TextEvaluationOptions& options = {});

// Texts without a label (-1) are left out.
// Collective: all ranks.
LOCKSTEP_API Evaluation evaluate_texts(BertClassifier& model, const data::TokenizedTexts& texts,
                                       Communicator& comm,
                                       const TextEvaluationOptions& options = {});

// The evaluation's counts with the labels' names.
LOCKSTEP_API ConfusionMatrix confusion_matrix(const Evaluation& evaluation,
                                              const std::vector<std::string>& labels);

}  // namespace lockstep::inline v0
