// StepSampler: steps of the same number of samples for any number of ranks, also where it does not
// divide them.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/data/sampler.h"

namespace lockstep::inline v0::data {

// The order of DistributedSampler, without its padding, in steps of `step_samples`; the last step
// has the rest. The samples of a step are distributed to the ranks in turn, so their numbers differ
// by at most one; a rank without any loads a sample that does not count. A loader with batch_size()
// has one batch per step. Where a loss is a mean over the batch, its weight is own(step) of
// samples(step).
class LOCKSTEP_API StepSampler final : public Sampler {
 public:
  // Throws InvalidArgument as DistributedSampler, and for steps of less than one sample.
  // `options.drop_last`: leaves out the last step where it is smaller.
  StepSampler(int64_t dataset_size, int64_t replicas, int64_t rank, int64_t step_samples,
              DistributedSamplerOptions options = {});

  int64_t size() const override;
  std::vector<int64_t> indices() const override;

  int64_t steps() const { return steps_; }  // of an epoch
  int64_t batch_size() const;               // of this rank, in all steps except perhaps the last
  int64_t largest() const;                  // of all ranks' batches
  int64_t samples(int64_t step) const;      // of all ranks, in that step of an epoch
  int64_t own(int64_t step) const;          // of these, this rank's

 private:
  int64_t loaded(int64_t step) const;

  int64_t dataset_size_, replicas_, rank_, step_samples_, steps_;
  DistributedSamplerOptions options_;
};

}  // namespace lockstep::inline v0::data
