// Shared by the samplers: the random order of an epoch, and checks of their arguments.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::inline v0::data {

// torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).
std::vector<int64_t> permutation(int64_t n, int64_t seed, int64_t epoch);

// Throw InvalidArgument "<sampler>: ..." for an empty data set; for 0 replicas or a rank outside
// 0..replicas-1; for drop_last with more replicas than samples.
void check_sampled_size(const char* sampler, int64_t dataset_size);
void check_sampled_rank(const char* sampler, int64_t replicas, int64_t rank);
void check_nothing_is_lost(const char* sampler, int64_t dataset_size, int64_t replicas,
                           bool drop_last);

}  // namespace lockstep::inline v0::data
