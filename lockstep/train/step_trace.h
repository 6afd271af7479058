// StepTrace: the allocations of the computation of a step's loss and gradients. They are recorded,
// extended to more samples, and summed up.
#pragma once

#include <algorithm>
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

// The computations of a step, StrategyGradients::compute() for each batch, and what they leave until
// the caller drops the losses.
struct StepTrace {
  AllocationTrace allocations;
  // The indices of the allocations that have become gradients of their own, which zero_grad()
  // frees. Gradients in buckets have their memory from elsewhere.
  std::vector<size_t> gradients = {};
  // Whether those are in StepMemory::gradients (StrategyGradients::counts_grad()).
  bool gradients_counted = true;
  int64_t activations = 0;  // bytes that a forward leaves, at most
  friend bool operator==(const StepTrace&, const StepTrace&) = default;
};

// The memory that the step takes. An allocation that is left over and is no gradient, such as a
// table that a model makes once, does not count. Pure.
LOCKSTEP_API StepBytes bytes_of(const StepTrace& trace);
// The trace of more samples (flat/allocation_trace.h); nullopt: the two are not alike. Pure.
LOCKSTEP_API std::optional<StepTrace> extended(const StepTrace& of_few, int64_t few,
                                               const StepTrace& of_more, int64_t more,
                                               int64_t samples);
// Extends each part by itself, where the traces are not alike. Approximate. Pure.
LOCKSTEP_API StepBytes on_line(const StepBytes& of_few, int64_t few, const StepBytes& of_more,
                               int64_t more, int64_t samples);
// The one with more at once, and the larger activations; for the computations of a step. Pure.
LOCKSTEP_API StepBytes most_of(const StepBytes& one, const StepBytes& other);

// Records the computation while it lives.
class LOCKSTEP_API StepRecorder {
 public:
  explicit StepRecorder(StrategyGradients& gradients) : gradients_(gradients) {}
  // A forward begins.
  void before_forward() { before_ = log_.now(); }
  // It has ended: what it leaves are activations.
  void after_forward() { activations_ = std::max(activations_, log_.now() - before_); }
  // While true, nothing that is allocated counts: a batch is loaded.
  void leave_out(bool on) { log_.leave_out(on); }
  // The gradients of all batches are there. To be called while nothing of them is dropped yet.
  void after_gradients();
  // All else is dropped.
  StepTrace trace() const;

 private:
  StrategyGradients& gradients_;
  AllocationLog log_;
  std::vector<size_t> own_;
  int64_t before_ = 0, activations_ = 0;
};

}  // namespace lockstep::inline v0
