// Evaluates a language model over all ranks and counts every token exactly once.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/token_windows.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/train/evaluation.h"

namespace lockstep::inline v0 {

// The name of the metric exp(loss).
inline constexpr const char* kPerplexity = "perplexity";

struct LmEvaluationOptions {
  int64_t batch_size = 16;  // windows a rank
  std::optional<amp::AutocastSettings> autocast = {};
};

// The result has as loss the mean negative log-probability of all targets, in nats; as accuracy the
// share of tokens that had the greatest probability; as samples the number of targets; as metrics
// the perplexity. Windows do not see each other, so the first tokens of each have little context.
// The model is in evaluation mode meanwhile, and has its former mode afterwards.
// Collective: all ranks.
Evaluation evaluate_lm(TransformerLm& model, const data::TokenWindows& windows, Communicator& comm,
                       const LmEvaluationOptions& options = {});

}  // namespace lockstep::inline v0
