#include "lockstep/train/step_trace.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "lockstep/train/strategy_parts.h"

namespace lockstep::inline v0 {

StepBytes bytes_of(const StepTrace& trace) {
  std::vector<size_t> lasting = left_over(trace.allocations);
  std::erase_if(lasting, [&](size_t i) { return std::ranges::count(trace.gradients, i) > 0; });
  const AllocationTrace step = without(trace.allocations, lasting);
  const int64_t most = most_at_once(step);
  int64_t beside = most, gradients = 0;
  if (trace.gradients_counted) {
    for (const size_t i : trace.gradients) gradients += step[i].bytes;
    beside = most_at_once(without(step, trace.gradients));
  }
  StepBytes bytes{.activations = std::min(trace.activations, beside)};
  bytes.temporaries = beside - bytes.activations;
  bytes.overlap = gradients + beside - most;
  return bytes;
}

std::optional<StepTrace> extended(const StepTrace& of_few, int64_t few, const StepTrace& of_more,
                                  int64_t more, int64_t samples) {
  if (of_few.gradients != of_more.gradients) return std::nullopt;
  auto all = extended(of_few.allocations, few, of_more.allocations, more, samples);
  if (!all) return std::nullopt;
  return StepTrace{
      .allocations = std::move(*all),
      .gradients = of_few.gradients,
      .gradients_counted = of_few.gradients_counted,
      .activations = on_line(of_few.activations, few, of_more.activations, more, samples)};
}

StepBytes on_line(const StepBytes& of_few, int64_t few, const StepBytes& of_more, int64_t more,
                  int64_t samples) {
  const auto line = [&](int64_t StepBytes::* part) {
    return std::max<int64_t>(0, on_line(of_few.*part, few, of_more.*part, more, samples));
  };
  return {.activations = line(&StepBytes::activations),
          .temporaries = line(&StepBytes::temporaries),
          .overlap = std::min(of_few.overlap, of_more.overlap)};
}

StepBytes most_of(const StepBytes& one, const StepBytes& other) {
  StepBytes most = one.at_once() >= other.at_once() ? one : other;
  const int64_t beside = most.activations + most.temporaries;
  most.activations = std::min(std::max(one.activations, other.activations), beside);
  most.temporaries = beside - most.activations;
  return most;
}

void StepRecorder::after_gradients() {
  own_.clear();
  for (const at::Tensor& gradient : gradients_.gradients()) {
    // A view of a bucket shares its memory with others.
    if (!gradient.has_storage() || gradient.storage().use_count() > 1) continue;
    if (const auto allocation = log_.allocation_of(gradient)) own_.push_back(*allocation);
  }
  std::ranges::sort(own_);
}

StepTrace StepRecorder::trace() const {
  return {.allocations = log_.trace(),
          .gradients = own_,
          .gradients_counted = gradients_.counts_grad(),
          .activations = gradients_.held().value_or(activations_)};
}

}  // namespace lockstep::inline v0
