#include "lockstep/data/length_grouped_sampler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/data/internal/sampling.h"

namespace lockstep::inline v0::data {
namespace {

constexpr const char* kLengthGrouped = "LengthGroupedSampler";

int64_t group_batches(int64_t samples, const LengthGroupedSamplerOptions& options) {
  if (options.group > 0) return options.group;
  constexpr int64_t kMost = 50, kGroupsWanted = 4;
  return std::clamp<int64_t>(samples / options.batch_size / kGroupsWanted, 1, kMost);
}

}  // namespace

LengthGroupedSampler::LengthGroupedSampler(std::vector<int64_t> lengths, int64_t num_replicas,
                                           int64_t rank, const LengthGroupedSamplerOptions& options)
    : lengths_(std::move(lengths)), replicas_(num_replicas), rank_(rank), options_(options) {
  const auto samples = static_cast<int64_t>(lengths_.size());
  check_sampled_size(kLengthGrouped, samples);
  check_sampled_rank(kLengthGrouped, num_replicas, rank);
  check_nothing_is_lost(kLengthGrouped, samples, num_replicas, options.drop_last);
  if (options.batch_size < 1 || options.group < 0) {
    throw InvalidArgument(std::string(kLengthGrouped) + ": batch_size " +
                          std::to_string(options.batch_size) + " and group " +
                          std::to_string(options.group) +
                          "; use a batch size of 1 or more and a group of 0 or more");
  }
  size_ = options.drop_last ? samples / num_replicas : (samples - 1) / num_replicas + 1;
}

std::vector<int64_t> LengthGroupedSampler::indices() const {
  const auto samples = static_cast<int64_t>(lengths_.size());
  std::vector<int64_t> order = permutation(samples, options_.seed, epoch());
  const auto length = [this](int64_t sample) { return lengths_[static_cast<size_t>(sample)]; };
  const auto longer = [&](int64_t a, int64_t b) { return length(a) > length(b); };

  // A single group, if all batches together are fewer than a group has.
  const int64_t batches = group_batches(samples, options_);
  const int64_t group =
      batches > samples / options_.batch_size ? samples : batches * options_.batch_size;
  auto longest = order.begin();
  for (int64_t begin = 0; begin < samples; begin += group) {
    const auto first = order.begin() + begin;
    std::stable_sort(first, order.begin() + std::min(begin + group, samples), longer);
    if (longer(*first, *longest)) longest = first;
  }
  std::iter_swap(order.begin(), longest);

  std::vector<int64_t> mine(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i)
    mine[static_cast<size_t>(i)] = order[static_cast<size_t>((rank_ + i * replicas_) % samples)];
  return mine;
}

}  // namespace lockstep::inline v0::data
