#include "lockstep/data/batch_shards.h"

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {

BatchShards::BatchShards(Sampler& whole, int64_t batch_size, int64_t replicas, int64_t rank,
                         bool drop_last)
    : whole_(whole), batch_size_(batch_size), replicas_(replicas), rank_(rank) {
  if (batch_size < 1 || replicas < 1 || rank < 0 || rank >= replicas) {
    throw InvalidArgument("BatchShards: batches of " + std::to_string(batch_size) + " for rank " +
                          std::to_string(rank) + " of " + std::to_string(replicas) +
                          "; sizes must be 1 or more, the rank below the replicas");
  }
  const int64_t step = batch_size * replicas;
  steps_ = drop_last ? whole.size() / step : (whole.size() + step - 1) / step;
  if (steps_ == 0) {
    throw InvalidArgument("BatchShards: " + std::to_string(whole.size()) +
                          " samples do not fill a batch of " + std::to_string(batch_size) +
                          " on each of " + std::to_string(replicas) + " ranks");
  }
  size_ = steps_ * batch_size;
}

std::vector<int64_t> BatchShards::indices() const {
  whole_.set_epoch(epoch());
  const std::vector<int64_t> all = whole_.indices();
  std::vector<int64_t> mine;
  mine.reserve(static_cast<size_t>(size_));
  for (int64_t step = 0; step < steps_; ++step) {
    const int64_t begin = (step * replicas_ + rank_) * batch_size_;
    for (int64_t i = begin; i < begin + batch_size_; ++i)
      mine.push_back(all[static_cast<size_t>(i) % all.size()]);
  }
  return mine;
}

int64_t BatchShards::last_step_samples() const {
  const int64_t step = batch_size_ * replicas_;
  const int64_t last = whole_.size() - (steps_ - 1) * step;
  return last < step ? last : step;
}

}  // namespace lockstep::inline v0::data
