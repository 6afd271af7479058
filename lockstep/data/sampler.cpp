#include "lockstep/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/data/internal/sampling.h"

namespace lockstep::inline v0::data {
namespace {

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> values(static_cast<size_t>(end - begin));
  std::iota(values.begin(), values.end(), begin);
  return values;
}

}  // namespace

void Sampler::set_epoch(int64_t epoch) {
  if (epoch < 0)
    throw InvalidArgument("set_epoch: epoch " + std::to_string(epoch) + "; epochs count from 0");
  epoch_ = epoch;
}

SequentialSampler::SequentialSampler(int64_t dataset_size) : size_(dataset_size) {
  check_sampled_size("SequentialSampler", dataset_size);
}

std::vector<int64_t> SequentialSampler::indices() const {
  return range(0, size_);
}

DistributedSampler::DistributedSampler(int64_t dataset_size, int64_t num_replicas, int64_t rank,
                                       DistributedSamplerOptions options)
    : dataset_size_(dataset_size), replicas_(num_replicas), rank_(rank), options_(options) {
  check_sampled_size("DistributedSampler", dataset_size);
  check_sampled_rank("DistributedSampler", num_replicas, rank);
  check_nothing_is_lost("DistributedSampler", dataset_size, num_replicas, options.drop_last);
  size_ = options.drop_last ? dataset_size / num_replicas : (dataset_size - 1) / num_replicas + 1;
}

std::vector<int64_t> DistributedSampler::indices() const {
  const std::vector<int64_t> order = options_.shuffle
                                         ? permutation(dataset_size_, options_.seed, epoch())
                                         : range(0, dataset_size_);
  // Position p of the padded order is position p % dataset_size of the order; this rank takes every
  // replicas-th one.
  std::vector<int64_t> mine(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) {
    mine[static_cast<size_t>(i)] =
        order[static_cast<size_t>((rank_ + i * replicas_) % dataset_size_)];
  }
  return mine;
}

ShardedSequentialSampler::ShardedSequentialSampler(int64_t dataset_size, int64_t num_replicas,
                                                   int64_t rank) {
  check_sampled_size("ShardedSequentialSampler", dataset_size);
  check_sampled_rank("ShardedSequentialSampler", num_replicas, rank);
  const int64_t each = dataset_size / num_replicas, longer = dataset_size % num_replicas;
  begin_ = rank * each + std::min(rank, longer);
  end_ = begin_ + each + (rank < longer ? 1 : 0);
}

std::vector<int64_t> ShardedSequentialSampler::indices() const {
  return range(begin_, end_);
}

LogicalSampler::LogicalSampler(int64_t dataset_size, int64_t replicas, int64_t first, int64_t own,
                               int64_t batch_size, DistributedSamplerOptions options)
    : dataset_size_(dataset_size),
      replicas_(replicas),
      first_(first),
      own_(own),
      batch_size_(batch_size),
      steps_(0),
      options_(options) {
  if (own < 1 || first < 0 || first + own > replicas || batch_size < 1)
    throw InvalidArgument("LogicalSampler: ranks " + std::to_string(first) + " to " +
                          std::to_string(first + own - 1) + " of " + std::to_string(replicas) +
                          " in batches of " + std::to_string(batch_size) + " cannot be");
  steps_ = DistributedSampler(dataset_size, replicas, first, options).size() / batch_size;
  if (steps_ == 0)
    throw InvalidArgument("LogicalSampler: " + std::to_string(dataset_size) +
                          " samples are no batch of " + std::to_string(batch_size) +
                          " for each of " + std::to_string(replicas) + " logical ranks");
}

std::vector<int64_t> LogicalSampler::indices() const {
  std::vector<std::vector<int64_t>> all;
  for (int64_t rank = first_; rank < first_ + own_; ++rank) {
    DistributedSampler sampler(dataset_size_, replicas_, rank, options_);
    sampler.set_epoch(epoch());
    all.push_back(sampler.indices());
  }
  std::vector<int64_t> result;
  result.reserve(static_cast<size_t>(size()));
  for (int64_t step = 0; step < steps_; ++step) {
    for (const std::vector<int64_t>& of_rank : all) {
      const auto batch = of_rank.begin() + step * batch_size_;
      result.insert(result.end(), batch, batch + batch_size_);
    }
  }
  return result;
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

}  // namespace lockstep::inline v0::data
