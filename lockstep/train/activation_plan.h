// Plans, before the first step, how many bytes the forward of a batch leaves for its backward.
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

namespace lockstep::inline v0 {

namespace internal {

// Puts a model into training mode for a trial, with a generator of the trial's own for this thread.
// The destructor restores the buffers and the mode.
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
  // A batch is cut into so many micro-batches; the plan tries multiples of it.
  int64_t micro_batches = 1;
  // Returns whether any rank was given true. For ranks that must try the same sizes, but may count
  // different bytes.
  std::function<bool(bool)> any = nullptr;
};

// Returns the bytes that a forward of `samples` samples will leave for its backward. `left(n)` runs
// a forward of n samples and returns its bytes (StrategyGradients::bytes_left()). The function
// tries a quarter of the samples (at least two) and half of them, and extends the line through both
// to `samples`. That is exact if all samples have one shape, and approximate otherwise. If four
// samples show that all of them would exceed `limit`, it returns their estimate at once, since more
// might not fit into memory. With micro-batches it tries two and four of each. Afterwards the
// model, its buffers and the generators are as before.
// Requires: a model on the CPU.
// Collective: if the model's forward communicates (SyncBatchNorm).
// Throws: what `left` throws.
// Cost: about the time of one forward.
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

}  // namespace lockstep::inline v0
