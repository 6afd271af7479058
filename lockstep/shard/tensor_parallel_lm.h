// A language model whose layers are divided among ranks: tensor parallelism as Megatron-LM has it (Shoeybi et al.,
// arXiv:1909.08053), over one axis of a mesh. parallelize() (parallelize.h) by lm_tensor_plan(), born divided.
//
//   Mesh mesh(comm, {{"data", 2}, {"tensor", 4}});
//   TransformerLm lm = tensor_parallel_lm(config, mesh["tensor"]);
//   DistributedDataParallel ddp(lm, mesh["data"]);          // the ranks of a "tensor" row read the same batch
//   ddp->forward(ids, {}, targets).backward();
//   lm_tensor_parts(config, mesh["tensor"]).clip_gradients(parameters_of(lm), 1.0);
//
// Each part has some of the heads with their queries, keys and values, some of the inner columns, and some rows of
// the vocabulary, of embeddings and head (lm_tensor_plan()). Norms and the last products' biases are whole on every
// part. What parts send: the rows [tokens, hidden_size] are all-reduced twice a layer in forward and twice in
// backward, once after the embeddings and once before the head, and three numbers a token for the loss, whose logits
// no rank gathers. forward() without targets does, for evaluation and sampling.
//
// The same as one process but for the order of sums: a loss is the whole model's on every part, and so are
// gradients of what is whole. These are computed from equal rows and equal gradients of rows, since sums over
// the parts have the same bits on all of them where the communicator is deterministic; so optimizers keep them equal
// without more being sent. Dropout drops what one process drops for the same dropout_seed, in every bit; where
// none is given, part 0's default generator decides, and 8 bytes are broadcast.
//
// With divides_rows (sequence parallelism, Korthikanti et al., arXiv:2205.05198) each part has its own rows between
// the divided products, tokens / parts in order: norms, dropout, residuals and what they keep for backward take a part's
// share of time and memory. Rows are gathered before a divided product and reduce-scattered after it, as many bytes as
// by all-reducing them; the gradients of norms and last biases are all-reduced besides. A batch's number of
// tokens is then a multiple of the parts.
//
// Heads of keys and values that are fewer than parts are on several of them: a head and what it computes is repeated on
// the neighbours whose queries look at it, and their gradients of it are added up among those, in a group of their own.
//
// Refused, in one line: a number of parts that does not divide the heads, or the inner columns; heads of keys that it
// neither divides nor is a multiple of; fewer words than parts. next() with a cache is for whole models.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/parallel/tensor/tensor_parts.h"

namespace lockstep::inline v0 {

// The options of tensor_parallel_lm().
struct TensorParallelOptions {
  bool divides_rows = false;  // sequence parallelism, where comm is more than one rank
};

// This rank's part, on the CPU in float32, with its slices of `values`, or without any, of those that
// TransformerLm(config) would have drawn: no rank has the whole. The model keeps a handle of `comm`. Its forwards are collective over it,
// with the same ids and targets on all parts; backwards too. Collective. Throws InvalidArgument (check(config),
// lm_tensor_plan(config).check()) before anything is sent; Mismatch where the ranks' configurations differ, or the
// states of their default generators where values are drawn.
LOCKSTEP_API TransformerLm tensor_parallel_lm(const LmConfig& config, const Communicator& comm,
                                              const ParameterParts& values = {},
                                              const TensorParallelOptions& options = {});
// The same of a whole model that every rank has: its values, their type, what requires grad, training or not.
LOCKSTEP_API TransformerLm tensor_parallel_lm(const TransformerLm& whole, const Communicator& comm,
                                              const TensorParallelOptions& options = {});

}  // namespace lockstep::inline v0
