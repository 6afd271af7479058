// What the routers of a language model with experts do, as figures of a log.
#pragma once

#include "lockstep/model/transformer_lm.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

// Of each layer with experts, of the last step (TransformerLmImpl::routers()), by name:
//   experts/0/choices   how many choices tokens made, num_experts_per_tok each
//   experts/0/share/3   the share of them that expert 3 had
//   experts/0/left_out  the share of them beyond their expert's capacity
//   experts/0/entropy   of the routers' shares, in nats: log(experts) where all are equal
//   experts/0/balance   the loss of load balancing without its coefficient: num_experts_per_tok at best
// Of a model that is divided over a mesh with the tokens of all ranks, and then collective; else with those of this
// rank, or of all where LmExperts::combine has added them up. Empty without experts. For TrainTask::figures.
Metrics expert_figures(const TransformerLm& model);

}  // namespace lockstep
