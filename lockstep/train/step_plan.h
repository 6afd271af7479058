// Plans, before the first step, what a step's forward and backward take: from the allocations of a
// few samples, every size of which is extended to the batch.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/flat/named_tensors.h"
#include "lockstep/hooks/thread_generator.h"
#include "lockstep/train/step_trace.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0 {

namespace internal {

// Puts a model into training mode for a trial, with a generator of the trial's own for this thread's
// operations on the CPU. The destructor restores the buffers, the mode and the generator of the
// model's device.
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
  at::Device device_;
  at::Tensor device_state_;  // undefined for the CPU
  at::Generator generator_;
  hooks::ThreadGenerator here_;
};

}  // namespace internal

// The options of plan_step().
struct StepPlanOptions {
  int64_t limit = INT64_MAX;  // bytes
  // A batch is cut into so many micro-batches; the plan tries multiples of it.
  int64_t micro_batches = 1;
  // Returns whether any rank was given true. For ranks that must try the same sizes, but may count
  // different bytes.
  std::function<bool(bool)> any = nullptr;
};

// The memory that a step will take, and how it was found.
struct StepPlan {
  StepBytes bytes;
  int64_t tried = 0;  // the most samples of a trial; as many as planned for: they were counted
};

// Plans the step of `samples` samples. `tried(n)` computes n samples and returns what that has
// allocated (StrategyGradients::tried()). The function tries two and four samples of each
// micro-batch, and extends every allocation to half of the samples and to all of them. If half of
// them take what was foretold, so will all. Otherwise sizes decide which allocations there are, as
// where a loss goes chunk by chunk, and all samples are tried: then the plan is a count. If four
// samples show that all of them would exceed `limit`, it returns their estimate at once, since more
// might not fit into memory. Afterwards the model, its buffers and the generators are as before.
// Requires: a model whose parameters are where it computes with them.
// Collective: if the model's computation communicates.
// Throws: what `tried` throws.
// Cost: about half a step; one and a half where all samples are tried.
template <typename Tried>
StepPlan plan_step(torch::nn::Module& model, int64_t samples, const Tried& tried,
                   const StepPlanOptions& options = {}) {
  const internal::Trial trial(model);
  const auto any = [&](bool here) { return options.any ? options.any(here) : here; };
  const int64_t parts = options.micro_batches;
  const int64_t few = 2 * parts, more = 2 * few;  // BatchNorm refuses a single one
  // With what a model makes once, such as tables of positions.
  (void)tried(std::min(few, samples));
  if (samples <= more) return {.bytes = bytes_of(tried(samples)), .tried = samples};
  const StepTrace of_few = tried(few), of_more = tried(more);
  const auto of = [&](int64_t n) { return extended(of_few, few, of_more, more, n); };
  const auto all = of(samples);
  const StepBytes rough =
      all ? bytes_of(*all) : on_line(bytes_of(of_few), few, bytes_of(of_more), more, samples);
  if (options.limit < INT64_MAX && any(rough.at_once() > options.limit))
    return {.bytes = rough, .tried = more};
  const int64_t half = samples / 2 / parts * parts;
  if (half > more && !any(!all)) {
    const StepTrace of_half = tried(half);
    const auto foretold = of(half);
    const auto is_right = [&] {
      const int64_t said = bytes_of(*foretold).at_once(), counted = bytes_of(of_half).at_once();
      return said >= counted && said - counted <= counted / 1000;  // every size is rounded up
    };
    if (!any(!foretold || !is_right())) return {.bytes = bytes_of(*all), .tried = half};
  }
  return {.bytes = bytes_of(tried(samples)), .tried = samples};
}

}  // namespace lockstep::inline v0
