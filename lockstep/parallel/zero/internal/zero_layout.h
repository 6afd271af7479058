// How ZeroOptimizer divides what it has: pure decisions, of its memory and of its plan. Not used
// directly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/shard_plan.h"
#include "lockstep/flat/shard_policy.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/parallel/zero/internal/unit_plan.h"

namespace lockstep {
struct ZeroOptions;
struct ZeroUnits;
}  // namespace lockstep

namespace lockstep::internal {

inline constexpr size_t kZeroInFlight = 3;  // buckets that are reduced at once

struct ZeroLayout {
  int parts = 1;          // ranks that the state is divided among; 1: this rank keeps all
  size_t buffers = 0;     // that the buckets' gradients share; 0: each bucket has its own
  bool masters = false;   // in float32, of 16-bit parameters
  bool one_copy = false;  // of the parameters a host, where that can be
  flat::BucketSizes sizes = {};
  std::vector<int64_t> grains = {};  // of each parameter, as plan_shards() takes them
  std::span<const int> copies = {};  // who shares one; empty: the ranks of a host
  const ZeroUnits* units = nullptr;  // whose parameters are divided between hosts too; null: none
  // Gives the values; null: they are rank 0's.
  const std::function<void(const std::string&, int64_t, const at::Tensor&)>* initial = nullptr;
};

// One rank has nothing to divide, and its backwards add up by themselves. Throws InvalidArgument for
// options that contradict each other.
ZeroOptions resolved(ZeroOptions options, int ranks);
// The policy of the options, or the algorithm's where they have none, and what it says of these parameters.
// Throws InvalidArgument as choose_shards() does, and for a policy that cuts what Muon takes whole.
struct ZeroShards {
  flat::ShardPolicy policy;
  flat::ShardChoice choice;
};
ZeroShards shards_of(const ZeroOptions& options, const optim::Algorithm& algorithm,
                     const NamedTensors& parameters);
// Whether parameters of that type have a master: those of 16 bits, where the options ask for it.
bool has_master(bool masters, at::ScalarType dtype);
// Refers to the options.
ZeroLayout layout_of(const ZeroOptions& options, int ranks, std::vector<int64_t> grains);
// The index-th parameter's, for messages and the policy.
std::string name_of(const std::vector<std::string>& names, size_t index);
// Each of one group, and of one unit or none. On devices those of units come first, since a rank knows when the others
// have a unit's gradients, and not when they have the rest.
std::vector<flat::ShardedBucket> plan_zero_buckets(std::span<const flat::TensorSpec> specs,
                                                   std::span<const size_t> groups,
                                                   const UnitPlan& units, const ZeroLayout& layout);
// Of units' sizes: the largest and the one after it, which computes and which is fetched meanwhile; or all of
// them.
int64_t most_here(std::vector<int64_t> sizes, bool all);

}  // namespace lockstep::internal
