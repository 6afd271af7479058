// The loss of rows times a vocabulary, without the logits of all of them: as next_token_loss() of the product,
// in memory that does not grow with the tokens.
//
//   at::Tensor loss = vocabulary_loss(rows, weight, targets);  // mean cross entropy, in nats
//
// Rows go through a chunk at a time: their logits, the logarithm of the sum of exponentials, and at once the
// gradient, which is multiplied into those of the rows and of the weight. So all products are done when forward
// returns, and backward only scales. As in Liger Kernel (Hsu et al., arXiv:2410.10989) and Cut Cross-Entropy
// (Wijmans et al., arXiv:2411.09009).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

namespace internal {
class DeferredGradients;
}  // namespace internal

// One rank's part of a vocabulary that is divided among several (Megatron's vocabulary-parallel cross entropy,
// Narayanan et al., arXiv:2104.04473): the weight's row 0 is the vocabulary's row `first`.
struct VocabularyPart {
  int64_t first = 0;
  int64_t all = 0;  // rows of the whole vocabulary; 0: the weight has all of them
  // Statistics [3, rows of a chunk] of this part become those of all parts, in place: for each row the largest
  // logit, the sum of exp(logit - largest), the target's logit (0 in a part that does not have it). Called for
  // every chunk, on all parts in one order, without gradients: combine_statistics(), or combined_statistics()
  // of what was gathered. What it throws, the loss throws.
  std::function<void(const at::Tensor& statistics)> combine = {};
};

// The options of vocabulary_loss().
struct VocabularyLossOptions {
  VocabularyPart part = {};  // the words that this rank has
  // Tokens of a chunk; alike on all parts. 0: 32 to 512, by the sizes of the whole vocabulary and of the rows, so
  // that a chunk's logits take 32 MiB or half of what the weight takes, whichever is more; not by the threads.
  int64_t rows_at_a_time = 0;
  // As LmPassOptions::deferred: the weight's gradient is added to grad() by run_deferred(). It has been computed
  // in forward all the same. On a device it comes in backward.
  std::shared_ptr<internal::DeferredGradients> deferred = nullptr;
  // Divides the sum over the targets; 0: their number. For callers with some of a batch's tokens.
  double divide_by = 0;
};

// rows [N, width], weight [vocabulary's rows here, width], targets int64 [N], -100 where there is nothing to
// predict -> the mean over the others, a scalar; NaN if there are none. Float32 where the rows are of 16 bits.
//
// On the CPU in float32, in float64, and in bfloat16 under autocast, where products are of bfloat16 and sums of
// float32; another type, another device: the composed form, next_token_loss() of the product, which has the
// logits. A divided vocabulary is then refused on the CPU; on a device it goes in larger chunks, for which the host
// does not wait, and targets are not looked at. Gradients are computed in forward where it is differentiated (grad
// mode, and the rows or the weight require it), else nothing but the loss. Two runs give equal bits, and so do
// all numbers of threads as far as libtorch's products do.
//
// For a part of the vocabulary, the loss is that of all parts, and the rows' gradient is this part's share:
// the backward of whatever divided the rows among the parts adds the shares up (hooks::ModelPart::enter).
//
// Throws InvalidArgument, before anything is combined: shapes and types that do not fit, a target outside of the
// vocabulary. In backward: create_graph; a second backward if the first one did not retain the graph.
LOCKSTEP_API at::Tensor vocabulary_loss(const at::Tensor& rows, const at::Tensor& weight,
                                        const at::Tensor& targets,
                                        const VocabularyLossOptions& options = {});

// The same of logits [N, vocabulary] that are there: next_token_loss(), or the sum divided by `divide_by`.
LOCKSTEP_API at::Tensor divided_loss(const at::Tensor& logits, const at::Tensor& targets,
                                     double divide_by);

// The loss of each token, without gradients: for evaluation.
struct TokenScores {
  at::Tensor losses;  // float64 [N], in nats; 0 where the target is -100
  at::Tensor
      likeliest;  // bool [N]: no logit is larger than the target's; false where the target is -100
};
// By vocabulary_loss()'s chunks, of the same arguments; throws likewise.
LOCKSTEP_API TokenScores vocabulary_scores(const at::Tensor& rows, const at::Tensor& weight,
                                           const at::Tensor& targets,
                                           const VocabularyLossOptions& options = {});
// The same from given logits [N, vocabulary].
LOCKSTEP_API TokenScores token_scores(const at::Tensor& logits, const at::Tensor& targets);

// The whole's statistics from the parts' (VocabularyPart::combine): at least one, all of one shape.
LOCKSTEP_API at::Tensor combined_statistics(const std::vector<at::Tensor>& parts);
// The same by reductions over the parts, each in place: the largest of each element, then the sum.
using ReduceInPlace = std::function<void(const at::Tensor&)>;
LOCKSTEP_API void combine_statistics(const at::Tensor& statistics, const ReduceInPlace& all_max,
                                     const ReduceInPlace& all_sum);

}  // namespace lockstep::inline v0
