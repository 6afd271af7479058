// Figures of a log about the routers of a language model with experts.
#pragma once

#include <vector>

#include "lockstep/model/transformer_lm.h"
#include "lockstep/train/metrics.h"

namespace lockstep::inline v0 {

// Figures for each layer with experts, by name. Empty without experts. For TrainTask::figures.
//   experts/0/choices   the number of choices that tokens made, num_experts_per_tok each
//   experts/0/share/3   the share of them that expert 3 had
//   experts/0/left_out  the share of them beyond their expert's capacity
//   experts/0/entropy   the entropy of the routers' shares, in nats: log(experts) if all are equal
//   experts/0/balance   the load balancing loss without its coefficient; num_experts_per_tok is
//                       the best
Metrics router_figures(const std::vector<RouterStatistics>& layers);
// The figures of the last step of a model (TransformerLmImpl::routers()). They count this rank's
// tokens, or those of all ranks if ExpertExchange::combine has added them up. For a model that is
// divided over a mesh use router_figures(parallel_lm_of(*strategy)->routers()), which is collective
// (lm_mesh_strategy.h).
Metrics expert_figures(const TransformerLm& model);

}  // namespace lockstep::inline v0
