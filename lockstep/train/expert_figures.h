// Figures of a log about the routers of a language model with experts.
#pragma once

#include "lockstep/model/transformer_lm.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

// The figures of the last step for each layer with experts (TransformerLmImpl::routers()), by name:
//   experts/0/choices   the number of choices that tokens made, num_experts_per_tok each
//   experts/0/share/3   the share of them that expert 3 had
//   experts/0/left_out  the share of them beyond their expert's capacity
//   experts/0/entropy   the entropy of the routers' shares, in nats: log(experts) if all are equal
//   experts/0/balance   the load balancing loss without its coefficient; num_experts_per_tok is
//                       the best
// They count the tokens of this rank, or of all ranks if LmExperts::combine has added them up or
// the model is divided over a mesh. Empty without experts. For TrainTask::figures.
// Collective: if the model is divided over a mesh.
Metrics expert_figures(const TransformerLm& model);

}  // namespace lockstep
