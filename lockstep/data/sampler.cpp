#include "lockstep/data/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::data {
namespace {

// torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).
std::vector<int64_t> permutation(int64_t n, int64_t seed, int64_t epoch) {
  at::Generator generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(seed) + static_cast<uint64_t>(epoch));
  const at::Tensor order = at::randperm(n, std::move(generator), at::kLong);
  const int64_t* first = order.const_data_ptr<int64_t>();
  return {first, first + n};
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> values(static_cast<size_t>(end - begin));
  std::iota(values.begin(), values.end(), begin);
  return values;
}

void check_size(const char* sampler, int64_t dataset_size) {
  if (dataset_size >= 1) return;
  throw InvalidArgument(std::string(sampler) + ": the data set has " +
                        std::to_string(dataset_size) + " samples; it needs at least 1");
}

void check_rank(const char* sampler, int64_t replicas, int64_t rank) {
  if (replicas < 1) {
    throw InvalidArgument(std::string(sampler) + ": " + std::to_string(replicas) +
                          " replicas; there must be at least 1");
  }
  if (rank < 0 || rank >= replicas) {
    throw InvalidArgument(std::string(sampler) + ": rank " + std::to_string(rank) +
                          " is outside 0.." + std::to_string(replicas - 1));
  }
}

}  // namespace

void Sampler::set_epoch(int64_t epoch) {
  if (epoch < 0)
    throw InvalidArgument("set_epoch: epoch " + std::to_string(epoch) + "; epochs count from 0");
  epoch_ = epoch;
}

SequentialSampler::SequentialSampler(int64_t dataset_size) : size_(dataset_size) {
  check_size("SequentialSampler", dataset_size);
}

std::vector<int64_t> SequentialSampler::indices() const {
  return range(0, size_);
}

DistributedSampler::DistributedSampler(int64_t dataset_size, int64_t num_replicas, int64_t rank,
                                       DistributedSamplerOptions options)
    : dataset_size_(dataset_size), replicas_(num_replicas), rank_(rank), options_(options) {
  check_size("DistributedSampler", dataset_size);
  check_rank("DistributedSampler", num_replicas, rank);
  if (options.drop_last && dataset_size < num_replicas) {
    throw InvalidArgument("DistributedSampler: drop_last leaves nothing of " +
                          std::to_string(dataset_size) + " samples for " +
                          std::to_string(num_replicas) +
                          " replicas; use fewer replicas, more data, or drop_last = false");
  }
  size_ = options.drop_last ? dataset_size / num_replicas : (dataset_size - 1) / num_replicas + 1;
}

std::vector<int64_t> DistributedSampler::indices() const {
  const std::vector<int64_t> order = options_.shuffle
                                         ? permutation(dataset_size_, options_.seed, epoch())
                                         : range(0, dataset_size_);
  // Position p of the padded order is position p % dataset_size of the order; this rank has every
  // replicas-th.
  std::vector<int64_t> mine(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) {
    mine[static_cast<size_t>(i)] =
        order[static_cast<size_t>((rank_ + i * replicas_) % dataset_size_)];
  }
  return mine;
}

ShardedSequentialSampler::ShardedSequentialSampler(int64_t dataset_size, int64_t num_replicas,
                                                   int64_t rank) {
  check_size("ShardedSequentialSampler", dataset_size);
  check_rank("ShardedSequentialSampler", num_replicas, rank);
  const int64_t each = dataset_size / num_replicas, longer = dataset_size % num_replicas;
  begin_ = rank * each + std::min(rank, longer);
  end_ = begin_ + each + (rank < longer ? 1 : 0);
}

std::vector<int64_t> ShardedSequentialSampler::indices() const {
  return range(begin_, end_);
}

SubsetSampler::SubsetSampler(std::vector<int64_t> indices, SubsetSamplerOptions options)
    : indices_(std::move(indices)), options_(options) {
  if (indices_.empty()) throw InvalidArgument("SubsetSampler: no indices; it needs at least 1");
  for (const int64_t index : indices_) {
    if (index < 0)
      throw InvalidArgument("SubsetSampler: index " + std::to_string(index) + " is negative");
  }
}

std::vector<int64_t> SubsetSampler::indices() const {
  if (!options_.shuffle) return indices_;
  std::vector<int64_t> order = permutation(size(), options_.seed, epoch());
  for (int64_t& index : order) index = indices_[static_cast<size_t>(index)];
  return order;
}

}  // namespace lockstep::data
