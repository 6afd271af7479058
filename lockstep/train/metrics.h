// Metrics: what an evaluation says, by name, in order; and predictions over all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/train/evaluation.h"

namespace lockstep {

using Metrics = std::vector<std::pair<std::string, double>>;

std::optional<double> find_metric(const Metrics& metrics, std::string_view name);

// As Python prints a dictionary: {'eval_loss': 1.1886, 'epoch': 1.0}. Numbers have the fewest
// digits that give them again.
std::string to_text(const Metrics& metrics);

// A model's outputs on a data set, every sample once and in the data set's order. The same on every
// rank.
struct EvalPrediction {
  at::Tensor predictions;  // [samples, ...]: logits, as a rule; undefined where no rank has any
  at::Tensor label_ids;    // [samples]
};

// Every rank's rows, in rank order, on every rank; a rank may have none. Collective.
EvalPrediction gather_predictions(Communicator& comm, const EvalPrediction& mine);

// Of logits [samples, classes] and labels int64 [samples], on whatever device; loss is left at 0.
Evaluation count_classes(const EvalPrediction& prediction);

}  // namespace lockstep
