// A sampler that puts samples of similar length together, so that padding to the longest costs
// little.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/data/sampler.h"

namespace lockstep::inline v0::data {

// The options of a LengthGroupedSampler.
struct LengthGroupedSamplerOptions {
  int64_t batch_size = 1;  // samples of a step: the loader's batch size times the ranks
  int64_t seed = 0;        // must be the same on every rank; the order comes from seed + epoch
  int64_t group = 0;  // batches that are sorted together; 0: size / (4 * batch_size), within 1..50
  bool drop_last = false;  // leave samples out so that ranks are even, instead of repeating some
};

// Exactly the indices of Hugging Face transformers' DistributedLengthGroupedSampler: a random
// permutation is cut into groups, each group sorted from long to short, the longest sample of all
// moved to the front (a batch that does not fit in memory fails at once), and the result
// distributed to the ranks in turn. All ranks get equally many samples and, in the same step,
// similar lengths.
class LOCKSTEP_API LengthGroupedSampler final : public Sampler {
 public:
  // `lengths`: of every sample of the data set.
  // Throws: InvalidArgument for an empty data set, a batch size below 1, a negative group, 0
  // replicas, a rank outside 0..num_replicas-1, and drop_last with more replicas than samples.
  LengthGroupedSampler(std::vector<int64_t> lengths, int64_t num_replicas, int64_t rank,
                       const LengthGroupedSamplerOptions& options);

  // For any type with rank() and size(), such as a Communicator; read once, not kept.
  template <class Comm>
    requires requires(const Comm& comm) { comm.rank(), comm.size(); }
  LengthGroupedSampler(std::vector<int64_t> lengths, const Comm& comm,
                       const LengthGroupedSamplerOptions& options)
      : LengthGroupedSampler(std::move(lengths), comm.size(), comm.rank(), options) {}

  int64_t size() const override { return size_; }
  std::vector<int64_t> indices() const override;

 private:
  std::vector<int64_t> lengths_;
  int64_t replicas_, rank_, size_;
  LengthGroupedSamplerOptions options_;
};

}  // namespace lockstep::inline v0::data
