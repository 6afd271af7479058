// A language model whose experts are divided among ranks: expert parallelism (GShard, Lepikhin et al.,
// arXiv:2006.16668; Switch, Fedus et al., arXiv:2101.03961), over one axis of a mesh, which is an axis of the data as
// well: each rank has tokens of its own.
//
//   Mesh mesh(comm, {{"data", 2}, {"expert", 4}});
//   TransformerLm lm = expert_parallel_lm(config, mesh["expert"], mesh.over({"data", "expert"}));
//   lm->forward(ids, {}, targets).backward();                  // of this rank's sequences
//   const LmGradients by = split_gradients(parameters_of(lm));
//   average_gradients(by.experts, mesh["data"]);               // which ranks with the same experts have
//   average_gradients(by.others, mesh.over({"data", "expert"}));
//   lm_expert_parts(config, mesh["expert"]).clip_gradients(parameters_of(lm), 1.0);  // parallel/tensor/tensor_parts.h
//
// Instead of averaging by hand: two Reducers (parallel/ddp/reducer.h), one for each list, which average while backward
// goes on. Rank p of n has experts [p * E / n, (p + 1) * E / n), and everything else. What is sent: expert_exchange.h.
//
// The same as one process with all tokens, but for the order of sums, where capacity_factor is 0 and all ranks have
// equally many tokens: gradients after that averaging, and routers' losses, whose value is the whole batch's on every
// rank. (The cross entropy is this rank's, whose mean over the ranks is the batch's.) With a capacity an expert leaves
// out tokens of each rank for itself.
//
// next() with a cache is for whole models.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/parameter_parts.h"
#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0 {

// This rank's part, on the CPU in float32, with its parameters of `values`, or without any, of those that
// TransformerLm(config) would have drawn: no rank has all experts. The model keeps handles of `comm`, whose ranks have
// the experts, and of `tokens`, which holds those and all others with tokens of the batch. Its forwards are collective
// over them, backwards too. Collective over `tokens`. Throws InvalidArgument (check(config); no experts, or experts
// that do not divide) before anything is sent; Mismatch where the ranks' configurations differ, or the states
// of their default generators where values are drawn.
LOCKSTEP_API TransformerLm expert_parallel_lm(const LmConfig& config, const Communicator& comm,
                                              const Communicator& tokens,
                                              const ParameterParts& values = {});
// The same of a whole model that every rank has: its values, their type, what requires grad, training or not.
LOCKSTEP_API TransformerLm expert_parallel_lm(const TransformerLm& whole, const Communicator& comm,
                                              const Communicator& tokens);

// Parameters by who averages them: `experts` over ranks with the same experts, `others` over all that have tokens.
struct LmGradients {
  NamedTensors experts, others;
};
// Divides a model's parameters by their names.
LOCKSTEP_API LmGradients split_gradients(const NamedTensors& parameters);

}  // namespace lockstep::inline v0
