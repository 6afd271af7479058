// What a forward of a batch will leave for its backward, known before the first step.
#pragma once

#include <ATen/core/Generator.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/flat/named_tensors.h"
#include "lockstep/hooks/thread_generator.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

namespace internal {

// A model on trial, as it trains: when it goes, buffers and mode are as they were, and what this thread
// has drawn came from a generator of its own.
class Trial {
 public:
  explicit Trial(torch::nn::Module& model);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>>
      modes_;  // of those below, and whether in training
  torch::nn::Module& model_;
  bool training_;
  NamedTensors buffers_, values_;
  at::Generator generator_;
  hooks::ThreadGenerator here_;
};

}  // namespace internal

struct ActivationPlanOptions {
  int64_t limit = INT64_MAX;  // bytes
  // Into how many micro-batches a batch is cut: what is tried is a multiple.
  int64_t micro_batches = 1;
  // Whether any rank says so, where ranks that are to try the same may count differently.
  std::function<bool(bool)> any = nullptr;
};

// Bytes that a forward of `samples` samples will leave for its backward. `left(n)` runs one of n samples and gives its
// bytes (StrategyGradients::bytes_left()). That is done for a
// quarter of them, but for two at least, where there are as many, and for half of them, and the line through
// both is followed to `samples`: exact where every sample is of one shape, about so where they differ. Takes
// about a forward's time. Where four samples tell that all would leave more than `limit` bytes, what they tell is given
// at once: more would not go into memory. With micro-batches, two and four of each.
// The model, its buffers and the generators are afterwards as before. CPU only. Communicates where the
// model's forward does (SyncBatchNorm): then on all ranks. Throws what `left` throws.
template <typename Left>
int64_t plan_activations(torch::nn::Module& model, int64_t samples, const Left& left,
                         const ActivationPlanOptions& options = {}) {
  const internal::Trial trial(model);
  const int64_t parts = options.micro_batches;
  constexpr int64_t kMany = 64;   // of fewer a quarter and half are as quickly done
  const int64_t two = 2 * parts;  // BatchNorm refuses a single one
  if (options.limit < INT64_MAX && samples > kMany * parts) {
    (void)left(two);
    const int64_t of_two = left(two), of_part = (left(2 * two) - of_two) / 2;
    const bool over = of_part > 0 && (samples - two) / parts > (options.limit - of_two) / of_part;
    if (options.any ? options.any(over) : over) return of_two + of_part * ((samples - two) / parts);
  }
  const int64_t few = std::min(samples, std::max(two, samples / 4 / parts * parts));
  const int64_t more = std::min(samples, 2 * few);
  (void)left(few);  // with what a model makes once, such as tables of positions
  const int64_t of_few = left(few);
  if (more == few) return of_few;
  const int64_t of_more = left(more);
  return of_more + (of_more - of_few) * (samples - more) / (more - few);
}

}  // namespace lockstep
