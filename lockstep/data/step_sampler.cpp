#include "lockstep/data/step_sampler.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/data/internal/sampling.h"

namespace lockstep::inline v0::data {
namespace {

// A rank's number of `all` samples that are distributed in turn.
int64_t dealt(int64_t all, int64_t replicas, int64_t rank) {
  return all / replicas + (rank < all % replicas ? 1 : 0);
}

}  // namespace

StepSampler::StepSampler(int64_t dataset_size, int64_t replicas, int64_t rank, int64_t step_samples,
                         DistributedSamplerOptions options)
    : dataset_size_(dataset_size),
      replicas_(replicas),
      rank_(rank),
      step_samples_(step_samples),
      steps_(0),
      options_(options) {
  check_sampled_size("StepSampler", dataset_size);
  check_sampled_rank("StepSampler", replicas, rank);
  if (step_samples < 1)
    throw InvalidArgument("StepSampler: steps of " + std::to_string(step_samples) +
                          " samples; a step needs at least 1");
  steps_ = options.drop_last ? dataset_size / step_samples : (dataset_size - 1) / step_samples + 1;
  if (steps_ == 0)
    throw InvalidArgument("StepSampler: drop_last leaves nothing of " +
                          std::to_string(dataset_size) + " samples for steps of " +
                          std::to_string(step_samples));
}

int64_t StepSampler::samples(int64_t step) const {
  return std::min(step_samples_, dataset_size_ - step * step_samples_);
}

int64_t StepSampler::own(int64_t step) const {
  return dealt(samples(step), replicas_, rank_);
}

// A rank without a sample loads one nevertheless, because it runs the same forward and backward as
// the others.
int64_t StepSampler::loaded(int64_t step) const {
  return std::max<int64_t>(own(step), 1);
}

int64_t StepSampler::batch_size() const {
  return std::max<int64_t>(dealt(step_samples_, replicas_, rank_), 1);
}

int64_t StepSampler::largest() const {
  return dealt(samples(0), replicas_, 0);
}

int64_t StepSampler::size() const {
  return (steps_ - 1) * batch_size() + loaded(steps_ - 1);
}

std::vector<int64_t> StepSampler::indices() const {
  std::vector<int64_t> order(static_cast<size_t>(dataset_size_));
  if (options_.shuffle)
    order = permutation(dataset_size_, options_.seed, epoch());
  else
    std::iota(order.begin(), order.end(), 0);
  std::vector<int64_t> mine;
  mine.reserve(static_cast<size_t>(size()));
  for (int64_t step = 0; step < steps_; ++step) {
    for (int64_t i = 0; i < loaded(step); ++i) {
      const int64_t place = step * step_samples_ + rank_ + i * replicas_;
      mine.push_back(order[static_cast<size_t>(place % dataset_size_)]);
    }
  }
  return mine;
}

}  // namespace lockstep::inline v0::data
