// parallelize: tensor parallelism (Shoeybi et al., arXiv:1909.08053) for a model of any modules, from outside. The plan is
// data, a table from names of modules to styles (tensor_plan.h); the model's source stays as it is.
//
//   const TensorPlan plan({{"blocks.*.query", TensorStyle::kHeads, 12},
//                          {"blocks.*.key", TensorStyle::kHeads, 12},
//                          {"blocks.*.value", TensorStyle::kHeads, 12},
//                          {"blocks.*.mix", TensorStyle::kRow},
//                          {"blocks.*.up", TensorStyle::kColumn},
//                          {"blocks.*.down", TensorStyle::kRow},
//                          {"words", TensorStyle::kVocabulary},
//                          {"head", TensorStyle::kVocabulary}});
//   TensorParts parts = parallelize(*model, mesh["tensor"], plan);
//   DistributedDataParallel replica(model, mesh["data"]);  // and what a loop does else, as before
//
// What a module's style means for its forward:
//
//   style                    is given             gives
//   kColumn, kHeads          whole columns        this part's columns, or those of its heads
//   kRow                     this part's columns  whole columns, added up over the parts
//   kVocabulary, Embedding   any ids              whole columns, added up over the parts
//   kVocabulary, Linear      whole columns        all columns, put together
//
//   kRows, any module        this part's rows      this part's rows
//   kRowsBegin               all rows              this part's rows
//   kRowsEnd                 this part's rows      all rows
//   kPositions, Embedding    positions of the rows their places in the whole sequence, of which this part has its own
//                            that are here
//
// So a module of style row stands behind those of style column or heads, and what lies between works on as many columns as it
// is given. Code there that says how many there are has to be mended: view({B, T, -1, width}) in place of
// view({B, T, heads, width}). ParallelizeOptions::probe finds such a line.
//
// Rows are dim -2: the tokens of [B, T, width]. They are divided in two ways. With divides_rows each part works on its own
// between the divided products (sequence parallelism, Korthikanti et al., arXiv:2205.05198): a column style is given own
// rows and works on all, a row style gives own rows. With a context every rank works on the tokens that it has all through
// the model, and attends to the others' (context_scope.h). Rows begin with the words, and are those that the model is given
// (own_tokens()); or at the module of style rows begin, in front of which all rows are everywhere. They go on to the
// outputs; or to the module of style rows end, behind which all rows are everywhere. Norms and what else has parameters
// and works on rows between are of style rows, or their gradients are those of own rows alone.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <optional>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/parameter_parts.h"
#include "lockstep/parallel/tensor/tensor_parts.h"
#include "lockstep/parallel/tensor/tensor_plan.h"

namespace lockstep::inline v0 {

// The options of parallelize().
struct ParallelizeOptions {
  // Runs the model's forward once, with the same input on all parts; called without gradients, when the model is divided. Where it
  // does not follow its divided modules, the error says behind which one, and what to change.
  std::function<void()> probe = {};
  // Along `comm` parts have their own rows between divided products. Their number divides those that each has of a sequence.
  bool divides_rows = false;
  // The model has no values, and gets this rank's slices of these (TensorParts::fill()): no rank has the whole. Otherwise
  // they are rank 0's.
  ParameterParts values = {};
  // The ranks that divide the tokens of each sequence. Each has an equal part of the model, made with the same values.
  std::optional<Communicator> context = {};
};

// Divides the model among the ranks of `comm`. Its parameters become this rank's slices, contiguous, without gradients, under
// the names that they have; the modules of the plan get hooks (hooks/layer_hook.h), of which one around a module sees
// what the table above says. Before DistributedDataParallel, ZeroOptimizer or an optimizer is made, and before the parameters are
// put anywhere else. The whole model is on every rank at first, on any device of the communicator's.
//
// Requires: modules of a style are torch::nn::Linear, or Embedding (kVocabulary), each held once, and no other code computes with
// their parameters. Those that two of them share are divided alike by both. Ranks' inputs are alike. torch::nn::Dropout draws
// from the default generator, which must stand alike on all parts where columns are whole; where they are divided every part
// draws for its own columns, other masks than one process. A clone() of the model computes as the part that it is of, on the same communicators, but does not add up gradients of own
// rows.
// A model of one's own nodes, which is hooks::Divisible as TransformerLm is, becomes its part itself: its modules get no
// hooks, and heads of keys may be fewer than parts, a number of which they are a divisor.
// Collective. Every rank gets rank 0's parameters and buffers, or slices of ParallelizeOptions::values.
// Throws InvalidArgument before anything is sent or changed: what TensorPlan::check() refuses; a module of another kind, or that
// takes no hook; more parts than heads. Mismatch where the ranks' plans or models differ. InvalidArgument by the probe,
// after which the model is divided and of no use.
// Cost: forward and backward of what lies between a column and a row style each add up one activation over the parts.
//
// The result loads, measures, clips and gathers the model's parameters, and says where they are in a checkpoint.
LOCKSTEP_API TensorParts parallelize(torch::nn::Module& model, const Communicator& comm,
                                     const TensorPlan& plan,
                                     const ParallelizeOptions& options = {});

}  // namespace lockstep::inline v0
