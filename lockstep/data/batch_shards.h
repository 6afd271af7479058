// BatchShards: a loader's batches distributed to ranks as whole batches, in their order.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/data/sampler.h"

namespace lockstep::inline v0::data {

// Rank r has those batches of `whole` (batch_size indices each, the last one perhaps fewer) that
// are numbered r, r + replicas, ...: N ranks in a step see the next N batches of one process. The
// last ones are filled from the beginning, so that every rank has equally many full batches; with
// drop_last, batches that do not fill a step are left out. So does Hugging Face accelerate's
// BatchSamplerShard with even batches.
//
// `whole` must outlive this; its epoch is set with this one's when indices() is called.
class LOCKSTEP_API BatchShards final : public Sampler {
 public:
  // Throws InvalidArgument for a batch size below 1, 0 replicas, a rank outside 0..replicas-1, and
  // a drop_last that leaves nothing.
  BatchShards(Sampler& whole, int64_t batch_size, int64_t replicas, int64_t rank,
              bool drop_last = false);

  int64_t size() const override { return size_; }
  std::vector<int64_t> indices() const override;

  // The number of real samples in the last step, counted over all ranks in rank order; the rest
  // repeats the beginning. replicas * batch_size where none is repeated.
  int64_t last_step_samples() const;

 private:
  Sampler& whole_;
  int64_t batch_size_, replicas_, rank_, steps_, size_;
};

}  // namespace lockstep::inline v0::data
