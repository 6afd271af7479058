// The options of DistributedDataParallel; the same on all ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/flat/bucket_plan.h"
#include "lockstep/parallel/ddp/comm_hook.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::inline v0 {

// The treatment of the ranks' buffers (BatchNorm's statistics) before each forward in training,
// with gradients enabled, whose backward communicates. After a backward they are each rank's own:
// call share_buffers() (checkpoint/share_buffers.h) before an evaluation and a save.
enum class Buffers : uint8_t {
  kBroadcast,  // rank 0's to all
  kAverage,    // those of floating point are averaged, the others are rank 0's
  kOwn,        // every rank keeps its own
};

// The weights of the ranks' losses, if they are means over the ranks' batches.
enum class DivideBy : uint8_t {
  // Equal weights: gradients are averaged over the ranks, without those that have run out of data
  // (join.h).
  kRanks,
  // Weights by the rows of the forward's first tensor: the result is that of one process with the
  // whole batch, also where ranks have unequal batches. Each forward costs one small all_reduce
  // more.
  kSamples,
};

// The options of DistributedDataParallel.
struct DdpOptions {
  flat::BucketSizes bucket_sizes = {};    // bytes: the first bucket, the others
  Buffers buffers = Buffers::kBroadcast;  // before each forward in training
  // At every N-th forward in training (with gradients enabled) the ranks' parameters are compared,
  // by 8 bytes, and Mismatch names the first that differs; 0: never.
  int64_t check_every = 0;
  std::shared_ptr<CommHook> hook = nullptr;  // averages the buckets; belongs to this wrapper alone
  Unused unused = Unused::kLeave;            // for parameters that no rank used
  // With unequal weights, gradients are scaled at the forward's outputs, from which the loss must
  // be computed.
  DivideBy divide_by = DivideBy::kRanks;
  bool static_graph = false;  // see ReducerOptions
  // Whether to compare the ranks' models and copy rank 0's parameters and buffers to all. False, as
  // PyTorch's init_sync: every rank keeps its values, which must be those of one model; used after
  // a recovery (recover/recovery.h), where buffers may be each rank's own.
  bool init_sync = true;
};

}  // namespace lockstep::inline v0
