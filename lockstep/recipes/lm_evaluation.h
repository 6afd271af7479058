// Evaluating a language model over all ranks, every token counted exactly once.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/token_windows.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/train/evaluation.h"

namespace lockstep {

// The name of the metric: e to the loss.
inline constexpr const char* kPerplexity = "perplexity";

struct LmEvaluationOptions {
  int64_t batch_size = 16;  // windows a rank
  std::optional<amp::AutocastSettings> autocast = {};
};

// loss: the mean over all targets of the negative log-probability, in nats; accuracy: the share of tokens
// that were the likeliest; samples: targets; metrics: perplexity. Windows do not see each other, so the
// first tokens of each are guessed from little. In evaluation mode and without gradients; afterwards the
// model is in the mode it was found in. Collective.
Evaluation evaluate_lm(TransformerLm& model, const data::TokenWindows& windows, Communicator& comm,
                       const LmEvaluationOptions& options = {});

}  // namespace lockstep
