// Samplers: decide which samples a rank loads, and in which order.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// The indices of an epoch are a pure function of the sampler's arguments and the epoch: any rank,
// at any time, gets the same.
// Thread-safety: one thread at a time: set_epoch() must not overlap another call.
class LOCKSTEP_API Sampler {
 public:
  virtual ~Sampler() = default;

  // The number of indices of this rank in an epoch; the same in every epoch.
  virtual int64_t size() const = 0;
  // The indices of the current epoch.
  virtual std::vector<int64_t> indices() const = 0;

  // Sets the epoch (0 at first) whose order indices() returns; a started loop keeps its order. Call
  // it before every epoch with the same value on every rank.
  // Throws: InvalidArgument below 0.
  void set_epoch(int64_t epoch);
  int64_t epoch() const { return epoch_; }  // the current one

 private:
  int64_t epoch_ = 0;
};

// 0, 1, ..., size - 1. A size of 0 throws InvalidArgument.
class LOCKSTEP_API SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(int64_t dataset_size);
  int64_t size() const override { return size_; }
  std::vector<int64_t> indices() const override;

 private:
  int64_t size_;
};

// The options of a DistributedSampler.
struct DistributedSamplerOptions {
  bool shuffle = true;     // a new order every epoch; false: 0, 1, 2, ...
  int64_t seed = 0;        // must be the same on every rank; the order comes from seed + epoch
  bool drop_last = false;  // leave samples out so that ranks are even, instead of repeating some
};

// Exactly the indices of PyTorch's torch.utils.data.DistributedSampler with the same arguments: a
// random permutation of the data set, padded from its own start (or cut) to a multiple of the ranks
// and distributed in turn. Every rank gets equally many samples, so with padding some are seen
// twice: for evaluation use ShardedSequentialSampler.
class LOCKSTEP_API DistributedSampler final : public Sampler {
 public:
  // Throws InvalidArgument for an empty data set, 0 replicas, a rank outside 0..num_replicas-1, and
  // drop_last with more replicas than samples (PyTorch would then train on nothing).
  DistributedSampler(int64_t dataset_size, int64_t num_replicas, int64_t rank,
                     DistributedSamplerOptions options = {});

  // For any type with rank() and size(), such as a Communicator; read once, not kept.
  template <class Comm>
    requires requires(const Comm& comm) { comm.rank(), comm.size(); }
  DistributedSampler(int64_t dataset_size, const Comm& comm, DistributedSamplerOptions options = {})
      : DistributedSampler(dataset_size, comm.size(), comm.rank(), options) {}

  int64_t size() const override { return size_; }
  std::vector<int64_t> indices() const override;

 private:
  int64_t dataset_size_, replicas_, rank_, size_;
  DistributedSamplerOptions options_;
};

// This rank's part of 0, 1, ..., dataset_size - 1 in order, each sample on exactly one rank: rank 0
// has the first indices, and so on; sizes differ by at most one and may be 0. Concatenating the
// ranks' results gives data set order.
class LOCKSTEP_API ShardedSequentialSampler final : public Sampler {
 public:
  // Throws InvalidArgument for an empty data set, 0 replicas or a rank out of range.
  ShardedSequentialSampler(int64_t dataset_size, int64_t num_replicas, int64_t rank);
  template <class Comm>
    requires requires(const Comm& comm) { comm.rank(), comm.size(); }
  ShardedSequentialSampler(int64_t dataset_size, const Comm& comm)
      : ShardedSequentialSampler(dataset_size, comm.size(), comm.rank()) {}

  int64_t size() const override { return end_ - begin_; }
  std::vector<int64_t> indices() const override;

 private:
  int64_t begin_, end_;
};

// The batches of several ranks' DistributedSamplers, one step after another: the first batch of
// each of `own` ranks from `first` on, of `replicas` in all, then the second of each, and so on.
// Samples of an epoch that make no whole batch are left out. A data set is thus distributed to
// logical ranks (parallel/logical) in the same way, whichever ranks compute them.
class LOCKSTEP_API LogicalSampler final : public Sampler {
 public:
  // Throws InvalidArgument as DistributedSampler, for ranks out of range, and where a rank has no
  // whole batch.
  LogicalSampler(int64_t dataset_size, int64_t replicas, int64_t first, int64_t own,
                 int64_t batch_size, DistributedSamplerOptions options = {});

  int64_t size() const override { return steps_ * own_ * batch_size_; }
  std::vector<int64_t> indices() const override;

 private:
  int64_t dataset_size_, replicas_, first_, own_, batch_size_, steps_;
  DistributedSamplerOptions options_;
};

// The options of a SubsetSampler.
struct SubsetSamplerOptions {
  bool shuffle = true;  // a new order every epoch; false: as given
  int64_t seed = 0;     // the order comes from seed + epoch
};

// Fixed indices, such as a part of DataPartitioner, reshuffled every epoch.
class LOCKSTEP_API SubsetSampler final : public Sampler {
 public:
  // Throws InvalidArgument if there are no indices or one is negative.
  explicit SubsetSampler(std::vector<int64_t> indices, SubsetSamplerOptions options = {});
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  std::vector<int64_t> indices() const override;

 private:
  std::vector<int64_t> indices_;
  SubsetSamplerOptions options_;
};

}  // namespace lockstep::inline v0::data
