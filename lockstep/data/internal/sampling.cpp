#include "lockstep/data/internal/sampling.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>

#include <string>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {

std::vector<int64_t> permutation(int64_t n, int64_t seed, int64_t epoch) {
  at::Generator generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(seed) + static_cast<uint64_t>(epoch));
  const at::Tensor order = at::randperm(n, std::move(generator), at::kLong);
  const int64_t* first = order.const_data_ptr<int64_t>();
  return {first, first + n};
}

void check_sampled_size(const char* sampler, int64_t dataset_size) {
  if (dataset_size >= 1) return;
  throw InvalidArgument(std::string(sampler) + ": the data set has " +
                        std::to_string(dataset_size) + " samples; it needs at least 1");
}

void check_sampled_rank(const char* sampler, int64_t replicas, int64_t rank) {
  if (replicas < 1) {
    throw InvalidArgument(std::string(sampler) + ": " + std::to_string(replicas) +
                          " replicas; there must be at least 1");
  }
  if (rank < 0 || rank >= replicas) {
    throw InvalidArgument(std::string(sampler) + ": rank " + std::to_string(rank) +
                          " is outside 0.." + std::to_string(replicas - 1));
  }
}

void check_nothing_is_lost(const char* sampler, int64_t dataset_size, int64_t replicas,
                           bool drop_last) {
  if (!drop_last || dataset_size >= replicas) return;
  throw InvalidArgument(std::string(sampler) + ": drop_last leaves nothing of " +
                        std::to_string(dataset_size) + " samples for " + std::to_string(replicas) +
                        " replicas; use fewer replicas, more data, or drop_last = false");
}

}  // namespace lockstep::inline v0::data
