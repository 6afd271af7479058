// What a user of DistributedDataParallel may choose; the same on all ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/flat/bucket_plan.h"
#include "lockstep/parallel/ddp/comm_hook.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep {

// The ranks' buffers (BatchNorm's statistics), before each forward in training, with gradients
// enabled, whose backward communicates.
enum class Buffers : uint8_t {
  kBroadcast,  // rank 0's to all
  kAverage,    // those of floating point are averaged, the others are rank 0's
  kOwn,        // every rank keeps its own
};

struct DdpOptions {
  flat::BucketSizes bucket_sizes = {};  // bytes: the first bucket, the others
  Buffers buffers = Buffers::kBroadcast;
  int64_t check_every = 0;  // at every so-manieth forward in training (with gradients enabled) the
                            // ranks' parameters are compared, by 8 bytes, and Mismatch names the
                            // first that has drifted apart; 0: never
  std::shared_ptr<CommHook> hook = nullptr;  // averages the buckets; this wrapper's alone
  Unused unused = Unused::kLeave;            // parameters that no rank used
  DivideBy divide_by = DivideBy::kRanks;
  bool static_graph = false;  // see ReducerOptions
};

}  // namespace lockstep
