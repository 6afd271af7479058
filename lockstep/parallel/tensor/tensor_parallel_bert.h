// A BertClassifier whose layers are divided among ranks: tensor parallelism as tensor_parallel_lm.h has it for language
// models, over one axis of a mesh.
//
//   BertClassifier part = tensor_parallel_bert(whole, mesh["tensor"]);
//   DistributedDataParallel ddp(part, mesh["data"]);        // the ranks of a "tensor" row read the same batch
//   cross_entropy(ddp->forward(ids, mask), labels).backward();
//   bert_tensor_parts(config, mesh["tensor"]).gather(parameters_of(part));
//
// Each part has some of the heads with their queries, keys and values, some of the inner columns, and some words of the
// embeddings. Positions, types, norms, the last products' biases, pooler and classifier are whole on every part, which
// computes them alike: their gradients have the same bits where the communicator is deterministic. Rows
// [tokens, hidden_size] are all-reduced twice a layer in forward and twice in backward, and once after the embeddings;
// of the last layer only the sequences' first tokens on their way out.
//
// The same as one process but for the order of sums; dropout drops what one process drops whose default generator stands
// where part 0's does, in every bit. The generator's state, some 5 KiB, is broadcast by each unit that drops.
// Layers are computed of single operations here, not by the fused node that one process has in float32.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/model/bert.h"
#include "lockstep/parallel/tensor/tensor_parts.h"

namespace lockstep {

// This rank's part, on the CPU in float32, with its slices of `values` (of a checkpoint, say); no rank has the whole. The
// model keeps a handle of `comm`. Its forwards are collective over it, with the same batches on all parts; backwards too.
// Collective. Throws InvalidArgument (check(config), bert_tensor_plan(config).check()) before anything is sent; Mismatch
// where the ranks' configurations differ.
BertClassifier tensor_parallel_bert(const BertConfig& config, const Communicator& comm,
                                    const ParameterParts& values);
// The same of a whole model that every rank has: its values, their type, what requires grad, training or not.
BertClassifier tensor_parallel_bert(const BertClassifier& whole, const Communicator& comm);

// The split alone, for who makes the model himself. Sends nothing; keeps handles of `comm`.
BertSplit bert_split(const Communicator& comm);

// What loads, measures and puts together such models' parameters. Sends nothing.
TensorParts bert_tensor_parts(const BertConfig& config, const Communicator& comm);

// Attention by heads, inner columns, the words of the embeddings; all else whole.
TensorPlan bert_tensor_plan(const BertConfig& config);
// The names and shapes that the whole model has, in its order. Throws InvalidArgument (check(config)).
NamedShapes bert_parameter_shapes(const BertConfig& config);

}  // namespace lockstep
