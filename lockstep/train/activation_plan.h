// What a forward of a batch will leave for its backward, known before the first step.
#pragma once

#include <ATen/core/Generator.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/flat/live_bytes.h"
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

// Bytes that a forward of `samples` samples will leave behind, its output included. `gather(n)` gives n
// samples, `forward` runs the model on them and gives what keeps its graph. That is done for a
// quarter of them, but for two at least, where there are as many, and for half of them, and the line through
// both is followed to `samples`: exact where every sample is of one shape, about so where they differ. Takes
// about a forward's time. Where four samples tell that all would leave more than `limit` bytes, what they tell is given
// at once: more would not go into memory.
// The model, its buffers and the generators are afterwards as before. CPU only. Communicates where the
// model's forward does (SyncBatchNorm): then on all ranks. Throws what the two throw.
template <typename Gather, typename Forward>
int64_t plan_activations(torch::nn::Module& model, int64_t samples, const Gather& gather,
                         const Forward& forward, int64_t limit = INT64_MAX) {
  const internal::Trial trial(model);
  const auto left = [&](int64_t n) {
    const auto batch = gather(n);
    const LiveBytes live;
    const auto output = forward(batch);
    return live.now();
  };
  constexpr int64_t kMany = 64;  // of fewer a quarter and half are as quickly done
  if (limit < INT64_MAX && samples > kMany) {
    (void)left(2);
    const int64_t of_two = left(2), a_sample = (left(4) - of_two) / 2;
    if (a_sample > 0 && samples > (limit - of_two) / a_sample)
      return of_two + a_sample * (samples - 2);
  }
  // BatchNorm refuses a single one.
  const int64_t few = std::min(samples, std::max<int64_t>(2, samples / 4));
  const int64_t more = std::min(samples, 2 * few);
  (void)left(few);  // with what a model makes once, such as tables of positions
  const int64_t of_few = left(few);
  if (more == few) return of_few;
  const int64_t of_more = left(more);
  return of_more + (of_more - of_few) * (samples - more) / (more - few);
}

}  // namespace lockstep
