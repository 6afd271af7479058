// What the routers of a language model with experts do, as figures of a log.
#pragma once

#include <vector>

#include "lockstep/model/transformer_lm.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

// Of each layer with experts, by name:
//   experts/0/choices   how many choices tokens made, num_experts_per_tok each
//   experts/0/share/3   the share of them that expert 3 had
//   experts/0/left_out  the share of them beyond their expert's capacity
//   experts/0/entropy   of the routers' shares, in nats: log(experts) where all are equal
//   experts/0/balance   the loss of load balancing without its coefficient: num_experts_per_tok at best
// Empty without experts. For TrainTask::figures.
Metrics router_figures(const std::vector<RouterStatistics>& layers);
// Of the last step of a model (TransformerLmImpl::routers()): with this rank's tokens, or those of all ranks where
// ExpertExchange::combine has added them up. Of one that is divided over a mesh it is
// router_figures(parallel_lm_of(*strategy)->routers()), which is collective (lm_mesh_strategy.h).
Metrics expert_figures(const TransformerLm& model);

}  // namespace lockstep
