// A language model of which each rank computes some tokens of every sequence: context parallelism, for sequences that
// are too long for one rank's memory or patience, over one axis of a mesh.
//
//   Mesh mesh(comm, {{"data", 2}, {"context", 4}});
//   TransformerLm lm = context_parallel_lm(config, mesh["context"]);
//   DistributedDataParallel ddp(lm, mesh.over({"data", "context"}));
//   ddp->forward(ids, {}, targets).backward();     // the ranks of a "context" row are given the same batch
//
// Every rank has the whole model and is given whole batches, of any lengths; it takes its rows (context_layout.h)
// and computes embeddings, layers, the loss of them. Only attention needs the others' (context_attention.h).
// Memory for activations and the time of a step so go down with the ranks; the parameters' memory does not.
//
// The same as one process but for the order of sums, by the convention that DistributedDataParallel has: a loss has the
// value of the whole batch's loss on every rank, its gradient is size() times that of this rank's share, and averages
// over the ranks are the whole batch's. Tokens without a target (-100) count as in one process, wherever they are.
// hidden_dropout drops what one process drops for the same dropout_seed, in every bit; where none is given, rank 0's
// default generator decides.
//
// Beside attention, a forward sends 8 bytes, by which the ranks learn whether they have the same lengths and ids, and a
// loss twice 8. forward() without targets and scores() gather what is asked for.
//
// Refused, in one line: attention_dropout, next() and generate(); kHeads where the ranks do not divide the heads.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/parallel/context/context_layout.h"

namespace lockstep::inline v0 {

// The options of context parallelism.
struct ContextOptions {
  ContextWay way = ContextWay::kRing;  // how ranks exchange keys and values
};

// Drawn from the default generator, with rank 0's values on all ranks. Collective. Throws InvalidArgument (check(config),
// attention_dropout, heads) before anything is sent, Mismatch where configurations or options differ.
LOCKSTEP_API TransformerLm context_parallel_lm(const LmConfig& config, const Communicator& comm,
                                               const ContextOptions& options = {});
// The same of a model that every rank has: copies of its values, their type, what requires grad, training or not.
LOCKSTEP_API TransformerLm context_parallel_lm(const TransformerLm& whole, const Communicator& comm,
                                               const ContextOptions& options = {});

}  // namespace lockstep::inline v0
