#include "lockstep/recipes/lm_evaluation.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cmath>

#include "lockstep/model/vocabulary_loss.h"
#include "lockstep/train/evaluation_pass.h"

namespace lockstep::inline v0 {
namespace {

struct Counts {
  double loss = 0;  // sum over targets
  double targets = 0;
  double right = 0;
};

Counts of_all_ranks(Communicator& comm, const Counts& mine) {
  const at::Tensor sums = at::empty({3}, at::kDouble);
  auto* values = sums.mutable_data_ptr<double>();
  values[0] = mine.loss;
  values[1] = mine.targets;
  values[2] = mine.right;
  comm.all_reduce(sums);
  return {values[0], values[1], values[2]};
}

}  // namespace

Evaluation evaluate_lm(TransformerLm& model, const data::TokenWindows& windows, Communicator& comm,
                       const LmEvaluationOptions& options) {
  Counts mine;
  evaluate_batches(model, windows, comm, options.batch_size, options.autocast, [&](auto& batch) {
    const TokenScores scores = model->scores(batch.ids, batch.targets, batch.lengths);
    mine.loss += scores.losses.sum().template item<double>();
    mine.targets +=
        static_cast<double>(batch.targets.ne(data::kNoTarget).sum().template item<int64_t>());
    mine.right += static_cast<double>(scores.likeliest.sum().template item<int64_t>());
  });
  const Counts all = of_all_ranks(comm, mine);
  Evaluation evaluation;
  evaluation.samples = static_cast<int64_t>(all.targets);
  if (all.targets > 0) {
    evaluation.loss = all.loss / all.targets;
    evaluation.accuracy = all.right / all.targets;
  }
  evaluation.metrics = {{kPerplexity, std::exp(evaluation.loss)}};
  return evaluation;
}

}  // namespace lockstep::inline v0
