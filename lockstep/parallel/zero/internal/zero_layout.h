// Decides how ZeroOptimizer divides parameters, gradients and state: its memory and its plan. Pure.
// Not used directly.
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

namespace lockstep::inline v0 {
struct ZeroOptions;
struct ZeroUnits;
}  // namespace lockstep::inline v0

namespace lockstep::inline v0::internal {

inline constexpr size_t kZeroInFlight = 3;  // buckets that are reduced at the same time

struct ZeroLayout {
  int parts = 1;          // ranks among which the state is divided; 1: this rank keeps all
  size_t buffers = 0;     // shared by the buckets' gradients; 0: each bucket has its own
  bool masters = false;   // float32 masters of 16-bit parameters
  bool one_copy = false;  // one copy of the parameters per host, where possible
  flat::BucketSizes sizes = {};
  std::vector<int64_t> grains = {};  // of each parameter, for plan_shards()
  std::span<const int> copies = {};  // ranks that share a copy; empty: those of a host
  // Units whose parameters are divided between hosts too; null: none.
  const ZeroUnits* units = nullptr;
  // The initial values; null: they are rank 0's.
  const std::function<void(const std::string&, int64_t, const at::Tensor&)>* initial = nullptr;
};

// One rank has nothing to divide, and its backwards add up by themselves. Throws InvalidArgument
// for contradictory options.
ZeroOptions resolved(ZeroOptions options, int ranks);
// The policy of the options, or the algorithm's where they have none, and its result for these
// parameters. Throws InvalidArgument as choose_shards(), and for a policy that cuts a parameter
// that Muon needs whole.
struct ZeroShards {
  flat::ShardPolicy policy;
  flat::ShardChoice choice;
};
ZeroShards shards_of(const ZeroOptions& options, const optim::Algorithm& algorithm,
                     const NamedTensors& parameters);
// Whether parameters of that type have a master: those of 16 bits, where the options ask for it.
bool has_master(bool masters, at::ScalarType dtype);
// The result refers to the options.
ZeroLayout layout_of(const ZeroOptions& options, int ranks, std::vector<int64_t> grains);
// The index-th parameter's name, for messages and the policy.
std::string name_of(const std::vector<std::string>& names, size_t index);
// The parameters of a bucket share one group, and one unit or none. On devices the buckets of units
// come first, since a rank knows when the others have a unit's gradients, but not when they have
// the rest.
std::vector<flat::ShardedBucket> plan_zero_buckets(std::span<const flat::TensorSpec> specs,
                                                   std::span<const size_t> groups,
                                                   const UnitPlan& units, const ZeroLayout& layout);
// From units' sizes: the largest sum of a computing unit and the next one, which is being fetched;
// or the sum of all.
int64_t most_here(std::vector<int64_t> sizes, bool all);

}  // namespace lockstep::inline v0::internal
