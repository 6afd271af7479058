// StepBatches: the batches of one step, and how much each counts. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/train/text_loss.h"

namespace lockstep {

// The losses of a step's batches are means over unequal numbers of samples or targets: over these all
// batches, micro-batches and ranks', the step's gradient is one mean. What Loss counts must be known
// before the first backward, so where it counts targets all batches of the step are taken at once.
//
//   StepBatches<Batch, Loss, Next> batches(...);
//   while (batches.next()) output = loss_of(batches.batch()), then batches.weighed(output).backward()
template <typename Batch, typename Loss, typename Next>
class StepBatches {
 public:
  // `next` gives the following batch, valid until the one after it; `samples`: of each batch, ranks alike but for `all`.
  // `ranks`: those whose gradients are averaged. `means`: of how many of this rank's batches the strategy
  // takes the mean as well; 1 where it adds them up. `all`: the samples of all ranks in the step, where theirs are
  // unequal; a batch with 0 samples does not count. Collective where Loss counts targets.
  StepBatches(const Loss& loss, Next next, std::vector<int64_t> samples, Communicator& ranks,
              int64_t means, std::optional<int64_t> all = {})
      : next_(std::move(next)), counts_(std::move(samples)) {
    if constexpr (CountsTargets<Loss, Batch>) {
      for (int64_t& count : counts_) {
        held_.push_back(std::move(next_()));
        if (count > 0) count = loss.targets(held_.back());
      }
    }
    const int64_t own = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
    share_ = all ? static_cast<double>(*all) / static_cast<double>(ranks.size() * means)
                 : static_cast<double>(own) / static_cast<double>(means);
    if constexpr (CountsTargets<Loss, Batch>) {
      const at::Tensor sum = at::full({1}, own, at::kLong);
      ranks.all_reduce(sum);
      share_ = sum.item<double>() / static_cast<double>(ranks.size() * means);
    }
  }

  // Goes on to the next one: whether there is one.
  bool next() {
    if (at_ == counts_.size()) return false;
    ++at_;
    if constexpr (!CountsTargets<Loss, Batch>) batch_ = &next_();
    return true;
  }
  Batch& batch() { return batch_ == nullptr ? held_[at_ - 1] : *batch_; }
  // Samples or targets: what the batch's loss is the mean of.
  int64_t counted() const { return counts_[at_ - 1]; }
  bool last() const { return at_ == counts_.size(); }
  // The loss whose gradient the batch adds to the step's. One that is a mean over nothing adds none: its own may be
  // no number (0 / 0), so the backward, which other ranks wait for, begins at the logits where there are any.
  at::Tensor weighed(const LossOutput& output) const {
    if (counted() == 0) {
      const bool begins = output.logits.defined() && output.logits.requires_grad();
      return (begins ? output.logits.sum() : output.loss).mul(0);
    }
    const double divisor = share_ / static_cast<double>(counted());
    return divisor == 1 ? output.loss : output.loss.div(divisor);
  }

 private:
  Next next_;
  std::vector<int64_t> counts_;
  std::vector<Batch> held_;
  Batch* batch_ = nullptr;
  size_t at_ = 0;
  double share_ = 1;  // what a batch counts on the average over ranks
};

}  // namespace lockstep
