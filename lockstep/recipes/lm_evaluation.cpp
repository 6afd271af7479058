#include "lockstep/recipes/lm_evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cmath>

#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"

namespace lockstep {
namespace {

struct Counts {
  double loss = 0;  // sum over targets
  double targets = 0;
  double right = 0;
};

void add_batch(Counts* counts, const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor known = targets.ne(data::kNoTarget);
  const at::Tensor losses =
      at::cross_entropy_loss(logits, targets, {}, at::Reduction::None, data::kNoTarget);
  counts->loss += losses.sum(at::kDouble).item<double>();
  counts->targets += static_cast<double>(known.sum().item<int64_t>());
  counts->right += static_cast<double>(logits.argmax(-1).eq(targets).sum().item<int64_t>());
}

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
  const at::NoGradGuard no_grad;
  const bool training = model->is_training();
  model->eval();
  Counts mine;
  data::ShardedSequentialSampler sampler(windows.size(), comm);
  if (sampler.size() > 0) {
    data::Loader loader(windows, sampler, {.batch_size = options.batch_size});
    for (auto& batch : loader) {
      std::optional<amp::Autocast> autocast;
      if (options.autocast) autocast.emplace(*options.autocast);
      const at::Tensor logits = model(batch.ids, batch.lengths);
      autocast.reset();
      add_batch(&mine, logits.to(at::kFloat), batch.targets);
    }
  }
  model->train(training);
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

}  // namespace lockstep
