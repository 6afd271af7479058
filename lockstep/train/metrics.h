// Metrics: the figures of an evaluation by name, in order; and predictions over all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/train/evaluation.h"

namespace lockstep::inline v0 {

// Figures by name, in the order in which they are shown.
using Metrics = std::vector<std::pair<std::string, double>>;

// The figure of that name; nullopt if there is none.
LOCKSTEP_API std::optional<double> find_metric(const Metrics& metrics, std::string_view name);

// The text of a Python dictionary: {'eval_loss': 1.1886, 'epoch': 1.0}. Numbers have the fewest
// digits that give them again.
LOCKSTEP_API std::string to_text(const Metrics& metrics);

// A model's outputs on a data set: every sample once, in the data set's order, the same on every
// rank.
struct EvalPrediction {
  at::Tensor predictions;  // [samples, ...]: usually logits; undefined if no rank has any
  at::Tensor label_ids;    // [samples]
};

// Gathers the rows of all ranks, in rank order, on every rank. A rank may have none.
// Collective: all ranks.
LOCKSTEP_API EvalPrediction gather_predictions(Communicator& comm, const EvalPrediction& mine);

// Counts logits [samples, classes] against labels int64 [samples], on any device. The loss stays 0.
LOCKSTEP_API Evaluation count_classes(const EvalPrediction& prediction);

}  // namespace lockstep::inline v0
