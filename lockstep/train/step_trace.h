// What the computation of a step's loss and gradients allocates: recorded, extended to more samples,
// and summed up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/flat/allocation_trace.h"
#include "lockstep/train/step_memory.h"

namespace lockstep::inline v0 {

class StrategyGradients;

// One StrategyGradients::compute(), and what it leaves until the caller drops the loss.
struct StepTrace {
  AllocationTrace allocations;
  // Of these, the ones that have become gradients of their own, which zero_grad() frees. Gradients
  // in buckets have their memory from elsewhere.
  std::vector<size_t> gradients = {};
  int64_t activations = 0;  // bytes at the end of the forward
  friend bool operator==(const StepTrace&, const StepTrace&) = default;
};

// What is left over and is no gradient, such as tables that a model makes once, does not count.
// Pure.
LOCKSTEP_API StepBytes bytes_of(const StepTrace& trace);
// That of more samples (flat/allocation_trace.h). Pure.
LOCKSTEP_API std::optional<StepTrace> extended(const StepTrace& of_few, int64_t few,
                                               const StepTrace& of_more, int64_t more,
                                               int64_t samples);
// Each part by itself, where the traces are not alike. Approximate. Pure.
LOCKSTEP_API StepBytes on_line(const StepBytes& of_few, int64_t few, const StepBytes& of_more,
                               int64_t more, int64_t samples);
// The largest of each part; of several computations in one step, and of the optimizer's. Pure.
LOCKSTEP_API StepBytes most_of(const StepBytes& one, const StepBytes& other);

// Records the computation while it lives.
class LOCKSTEP_API StepRecorder {
 public:
  explicit StepRecorder(StrategyGradients& gradients) : gradients_(gradients) {}
  // The forward has ended.
  void after_forward() { activations_ = log_.now(); }
  // The gradients are there. To be called while nothing of them is dropped yet.
  void after_gradients();
  // All else is dropped.
  StepTrace trace() const;

 private:
  StrategyGradients& gradients_;
  AllocationLog log_;
  std::vector<size_t> own_;
  int64_t activations_ = 0;
};

}  // namespace lockstep::inline v0
